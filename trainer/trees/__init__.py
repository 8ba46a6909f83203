"""Prefix trees: records merged so that every distinct token stands once, packed into rows."""
