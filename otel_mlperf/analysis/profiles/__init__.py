"""What did the devices do in profiler windows?"""
