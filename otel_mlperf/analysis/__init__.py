"""Analysis of a run's tables into findings: plain data for the terminal and for ``--json``."""
