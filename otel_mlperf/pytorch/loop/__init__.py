"""How are the moments and the steps of a torch loop seen that nobody has touched?"""
