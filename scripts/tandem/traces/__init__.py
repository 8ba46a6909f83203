"""Episodes as OpenTelemetry spans: read from a run's documents, sent to any receiver of OTLP."""
