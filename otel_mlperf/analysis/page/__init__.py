"""Data of a run's HTML page: its summary, charts, events and comparisons."""
