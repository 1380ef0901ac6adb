"""Links from each event of a trace to its parent, launch, section and step."""
