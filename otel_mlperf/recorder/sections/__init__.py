"""Opening, parents, profiles and closing of sections."""
