"""The public calls of the package."""
