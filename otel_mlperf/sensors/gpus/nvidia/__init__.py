"""Sensor of NVIDIA GPUs, which are read with NVML."""
