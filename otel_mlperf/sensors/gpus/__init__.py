"""GPUs, by vendor."""
