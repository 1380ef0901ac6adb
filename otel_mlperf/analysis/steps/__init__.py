"""Step times: one step, a typical step, and differences between ranks."""
