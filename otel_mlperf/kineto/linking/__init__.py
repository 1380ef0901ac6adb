"""Links of each event of a trace: parent, launch, section and step."""
