"""The lifecycle of a run from `start()` on: identity, folder, agent, fork, closing."""
