"""What does a page about a run show: the run's own answers, and its course over time?"""
