"""Exact numbers of a profiler window."""
