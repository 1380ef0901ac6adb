"""What needs torch: its training loop, windows of its profiler, the memory of its allocator.

Nothing here imports torch before the program does.
"""
