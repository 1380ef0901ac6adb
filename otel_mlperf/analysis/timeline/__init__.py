"""Timeline of a run: slices, points and instants on tracks."""
