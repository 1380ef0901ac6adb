"""When was a GPU in each section, without a profiler and without waiting for it?"""
