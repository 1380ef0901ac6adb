"""What comes in: rows of the journals, and the log that makes them survive the agent."""
