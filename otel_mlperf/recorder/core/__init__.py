"""Data and error handling that every part of the recorder uses."""
