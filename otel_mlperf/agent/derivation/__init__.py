"""Derivation of steps, self times, sampled spans, metric series and tracker points from rows."""
