"""Benchmark of a data loader: throughput, cost breakdown and best setting."""
