"""Recorder inside the training process, which only writes to its journal and never waits."""
