"""Start and end of steps."""
