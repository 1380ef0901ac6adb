"""Sections: their opening, parents, profiles and closing."""
