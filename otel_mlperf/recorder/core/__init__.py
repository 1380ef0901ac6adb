"""Plain data and what may go wrong: what every part of the recorder knows."""
