"""Figures from inside a DataLoader: workers, ready batches and the time to the first batch."""
