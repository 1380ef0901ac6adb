"""How a section is opened, placed and closed."""
