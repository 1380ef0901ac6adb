"""Import of torch.profiler traces into runs."""
