"""Sensors of the whole host: CPUs, memory, disks, network and pressure."""
