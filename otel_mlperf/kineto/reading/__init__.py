"""Reader of trace files of any version and vendor into columns; tolerates damage."""
