"""Settings of the package: their declaration, their sources, and OpenTelemetry's variables."""
