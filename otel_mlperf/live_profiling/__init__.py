"""How is a job that runs asked for a profiler window, and what became of it?"""
