"""Journals: files in shared memory that training processes write and the agent reads."""
