"""Settings: their declaration, their sources, and supported variables of OpenTelemetry."""
