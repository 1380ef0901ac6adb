"""Sensors of host, processes and devices. They depend on no runs, journals or servers."""
