"""Facts about a run: its processes, and the accounts of all recorded items."""
