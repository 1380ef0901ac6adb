"""Comparison of runs: what is faster or slower, with confidence intervals."""
