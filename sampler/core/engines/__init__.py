"""Inference engines: `client` speaks to one, `pool` chooses among those of a policy."""
