"""Checkpoints on disk: whole or not at all, with random states."""
