"""A trace file as columns, whatever its version, vendor and damage."""
