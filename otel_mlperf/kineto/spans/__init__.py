"""Spans of the events of a trace, limited by a span budget."""
