"""Lifecycle of a run: identity, folder, agent, forks, closing."""
