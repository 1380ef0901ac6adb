"""Instrumentation of PyTorch: its training loop, profiler windows and allocator memory.

Nothing here imports torch before the program does.
"""
