"""Composition of the agent: its loop, its process, recovery."""
