"""Conversations as token ids, by any model's chat template."""
