"""Memory of PyTorch's allocators, and the CUDA allocator's state when memory runs out."""
