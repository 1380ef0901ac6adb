"""Sensor readings of the node: host, processes, control groups and GPUs."""
