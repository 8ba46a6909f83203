"""Turns a completed group into training data."""
