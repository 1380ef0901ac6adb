"""What is there to say about a whole run?"""
