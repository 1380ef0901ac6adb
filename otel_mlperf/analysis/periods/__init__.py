"""What did a run do in each hour, or other period?"""
