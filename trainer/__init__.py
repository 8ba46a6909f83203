"""The trainer: streams record data, merges prefixes, computes losses, steps, commits, publishes weights."""
