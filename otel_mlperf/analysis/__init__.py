"""From a run's tables to findings: plain data, the same for the terminal and for ``--json``."""
