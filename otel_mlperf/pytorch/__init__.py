"""What needs torch: hooks that make the steps of an untouched training script visible.

Nothing here imports torch before the program does.
"""
