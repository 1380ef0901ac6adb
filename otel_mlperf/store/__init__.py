"""The run folder: what a run left on disk, written by the agent and read by everything else."""
