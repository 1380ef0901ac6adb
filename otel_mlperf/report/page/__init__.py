"""HTML page of a run, which is one self-contained file."""
