"""Inference of the moments and steps of an unmodified torch training loop."""
