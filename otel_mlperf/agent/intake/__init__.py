"""Intake of rows from the journals, and the write-ahead log of events."""
