"""How does what a run folder holds leave it again: as requests, or as a file?"""
