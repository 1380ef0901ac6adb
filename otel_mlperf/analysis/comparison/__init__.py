"""Is one run faster than another, in what, and how sure is that?"""
