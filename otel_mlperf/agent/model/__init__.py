"""Data model of the agent: options, state, events, sampled spans, sampling."""
