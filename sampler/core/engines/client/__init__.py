"""The client of an engine: HTTP transport, checked answers, refusals, keys."""
