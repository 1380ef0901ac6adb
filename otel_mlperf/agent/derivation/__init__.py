"""What follows from it: steps, self times, which traces are kept, metric series and points."""
