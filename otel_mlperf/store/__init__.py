"""Storage of runs in run folders: written by the agent, and read by all other parts."""
