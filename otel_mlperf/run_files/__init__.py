"""Files of a run folder that its processes write themselves, apart from the tables."""
