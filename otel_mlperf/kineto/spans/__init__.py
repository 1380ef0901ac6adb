"""Events of a trace as spans, within what a screen can show."""
