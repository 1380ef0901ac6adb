"""Table of findings: conditions, thresholds and advice, for live and finished runs."""
