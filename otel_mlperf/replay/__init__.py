"""Export of a run folder's contents: as OTLP requests, or as a file."""
