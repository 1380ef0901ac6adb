"""How does a run look as one page of HTML, which people send to each other?"""
