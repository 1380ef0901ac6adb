"""Limits and use of the container or job of a process."""
