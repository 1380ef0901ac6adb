"""NVIDIA GPUs, through NVML."""
