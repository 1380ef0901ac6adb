"""OTLP: encoding of telemetry from numpy columns, and its confirmed delivery to a server."""
