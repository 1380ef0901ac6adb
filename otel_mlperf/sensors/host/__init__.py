"""Sensors of the whole host: CPUs, memory, disks, network, pressure."""
