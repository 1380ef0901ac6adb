"""Summary of a whole run."""
