"""What does PyTorch's CUDA allocator hold, and what is left when it runs out?"""
