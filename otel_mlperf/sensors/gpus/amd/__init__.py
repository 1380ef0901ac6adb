"""AMD GPUs, through `amdsmi`."""
