"""Reader of a trace file into columns, for any version and vendor, and in spite of damage."""
