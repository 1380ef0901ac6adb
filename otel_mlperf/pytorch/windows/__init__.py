"""Windows of torch.profiler: their schedule, recording and trace files."""
