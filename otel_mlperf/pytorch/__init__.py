"""Instrumentation of PyTorch: its training loop, profiler windows and allocator memory.

No module here imports torch before the program does.
"""
