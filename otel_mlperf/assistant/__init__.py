"""What can an assistant ask of runs, by the Model Context Protocol, and what can it never do?"""
