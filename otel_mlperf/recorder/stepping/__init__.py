"""Where a step begins and ends."""
