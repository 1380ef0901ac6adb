"""When does torch.profiler record, what, and where does its trace go?"""
