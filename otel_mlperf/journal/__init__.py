"""The journal: one file per process in shared memory that the program writes and the agent reads."""
