"""From `start()` to the end of the process: identity, folder, agent, fork, closing."""
