"""The agent: one process per node that reads journals, writes the run folder and delivers."""
