"""Profiler windows, converted in a process beside the agent."""
