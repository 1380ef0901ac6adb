"""Exact totals of a profiler window, and its completeness."""
