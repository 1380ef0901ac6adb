"""What the container or job of a process may use, and how much it does."""
