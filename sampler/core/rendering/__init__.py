"""Renders conversations as token ids, with any model's chat template."""
