"""What is wrong with this machine, this endpoint, this run, and what is to be done about it?"""
