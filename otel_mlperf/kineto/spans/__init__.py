"""Spans of the events of a trace, limited to what a screen can show."""
