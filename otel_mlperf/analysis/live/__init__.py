"""What does a run do right now?"""
