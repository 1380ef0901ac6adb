"""How does a trace of torch.profiler become part of a run?"""
