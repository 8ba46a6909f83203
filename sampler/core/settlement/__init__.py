"""Turns a completed group into training data. Guide: docs/train/groups.md."""
