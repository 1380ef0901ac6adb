"""Derivation from rows: steps, self times, sampled traces, metric series and points."""
