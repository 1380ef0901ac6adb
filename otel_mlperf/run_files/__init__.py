"""Files in a run folder that the training processes write, apart from the tables."""
