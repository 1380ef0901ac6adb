"""Memory of PyTorch's CUDA allocator, and its state when it runs out."""
