"""Steps: their start and end."""
