"""Sections: opening, placing and closing them."""
