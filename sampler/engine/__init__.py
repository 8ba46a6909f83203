"""Inference engines: the client, the choice among services, the keeper that registers one, and a local CPU engine."""
