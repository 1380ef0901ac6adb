"""The journal: a file in shared memory that a process writes and the agent reads."""
