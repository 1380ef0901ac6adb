"""Data of a run's HTML page: the run's own answers and its course over time."""
