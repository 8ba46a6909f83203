"""A completed group becomes training data."""
