"""Storage of runs in run folders, which the agent writes and all other parts read."""
