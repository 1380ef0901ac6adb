"""The one place that composes the agent: its loop, its process, recovery."""
