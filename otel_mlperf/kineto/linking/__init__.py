"""What each event of a trace belongs to."""
