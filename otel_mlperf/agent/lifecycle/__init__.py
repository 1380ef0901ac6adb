"""Lifecycle of the agent: main loop, process, and recovery of runs."""
