"""What is read beside the journals: host, processes, control groups and GPUs."""
