"""Where does the time of a step go?"""
