"""GPU time of sections, measured without a profiler and without waiting for the GPU."""
