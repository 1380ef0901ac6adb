"""Sensors of host, processes and devices, independent of runs, journals and servers."""
