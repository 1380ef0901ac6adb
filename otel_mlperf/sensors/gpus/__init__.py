"""Sensors of GPUs, by vendor."""
