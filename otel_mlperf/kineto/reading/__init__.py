"""Reader of trace files into columns, for any version and vendor; tolerates damage."""
