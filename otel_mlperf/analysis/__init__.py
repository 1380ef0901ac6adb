"""Analyses of a run's tables, with plain data as results: for the terminal and ``--json``."""
