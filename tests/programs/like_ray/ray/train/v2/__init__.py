"""Where Ray has it."""
