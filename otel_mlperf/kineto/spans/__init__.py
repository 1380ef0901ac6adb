"""Spans for the events of a trace, as far as the span budget allows."""
