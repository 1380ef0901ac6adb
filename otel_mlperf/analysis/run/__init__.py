"""Who took part in a run, and what became of all that it recorded?"""
