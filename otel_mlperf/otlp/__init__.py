"""How does telemetry get from numpy columns to an OTLP server that really accepted it?"""
