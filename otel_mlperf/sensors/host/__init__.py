"""The host as a whole: CPUs, memory, disks, network, pressure."""
