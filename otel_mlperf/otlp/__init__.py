"""OTLP: encoding of telemetry from NumPy columns, and confirmed delivery to a server."""
