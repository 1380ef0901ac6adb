"""The exact numbers of a profiler window."""
