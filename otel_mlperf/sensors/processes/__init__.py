"""Sensors of training processes and their children."""
