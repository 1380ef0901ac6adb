"""Figures of a run by hours or other periods."""
