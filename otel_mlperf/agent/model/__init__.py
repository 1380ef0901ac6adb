"""What the parts of the agent share: its state, its events, the shape of a kept span."""
