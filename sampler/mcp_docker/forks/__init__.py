"""Bundled tools as forks of one process that has them loaded."""
