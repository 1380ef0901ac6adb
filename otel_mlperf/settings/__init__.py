"""Settings: declaration, sources, and what the standard variables of OpenTelemetry mean here."""
