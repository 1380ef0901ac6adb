"""What was wrong with a run, by how much, and what is to be done?"""
