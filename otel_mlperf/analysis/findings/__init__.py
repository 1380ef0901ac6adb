"""Findings of a run: performance problems, their cost and the recommended action.

The threshold, severity and texts of each finding are in a row of the findings table
(``otel_mlperf.findings.finding_table``).
"""
