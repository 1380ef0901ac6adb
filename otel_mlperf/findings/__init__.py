"""What is found out about a run, while it goes on and when it has ended."""
