"""Intake of rows from the journals, and the log that makes them survive the agent."""
