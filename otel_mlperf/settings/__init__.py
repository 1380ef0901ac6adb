"""Settings of the package: declarations, sources, and OpenTelemetry's standard variables."""
