"""Stands in for Ray where workers are started: what they train is handed to them by value."""
