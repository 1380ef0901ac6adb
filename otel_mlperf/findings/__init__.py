"""Table of findings: conditions, thresholds and advice for running and finished runs."""
