"""Live view of a run: current step, requests, devices and warnings."""
