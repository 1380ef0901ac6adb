"""Findings as text: for the terminal and for notebooks."""
