"""The agent: one process per node that reads journals, keeps the run folder and delivers."""
