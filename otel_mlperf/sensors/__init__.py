"""Host, processes and devices as numbers. Knows nothing of runs, journals or servers."""
