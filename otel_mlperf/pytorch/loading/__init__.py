"""What happens inside a DataLoader: workers, batches that are ready, and the first one."""
