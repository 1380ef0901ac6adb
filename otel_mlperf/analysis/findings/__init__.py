"""Findings of a run: performance problems, their cost and the recommended action."""
