"""The recorder inside the training process: it only writes to its journal and never waits."""
