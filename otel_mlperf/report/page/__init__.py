"""HTML page of a run: one self-contained file."""
