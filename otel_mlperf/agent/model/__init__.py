"""What the parts of the agent share: options, state, events, the shape of a kept span, sampling."""
