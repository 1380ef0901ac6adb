"""What needs torch: hooks into untouched scripts, profiler windows, the memory of the allocator.

Nothing here imports torch before the program does.
"""
