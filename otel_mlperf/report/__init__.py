"""How findings look: on a terminal, in a notebook, for programs and in viewers of timelines."""
