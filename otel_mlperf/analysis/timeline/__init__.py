"""What happened when, on which track?"""
