"""Checkpoints on disk: atomically written, with random states."""
