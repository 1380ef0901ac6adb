"""How does what a run folder holds become requests again?"""
