"""Training processes and their children."""
