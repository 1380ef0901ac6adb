"""Journals: files in shared memory that processes write and the agent reads."""
