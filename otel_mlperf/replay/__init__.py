"""Export of recorded runs as OTLP requests or as files."""
