"""Device work in profiler windows: kernels, operators, copies and hot spots."""
