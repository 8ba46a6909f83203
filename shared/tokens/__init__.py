"""Tokens of an episode: from its dispatches to the token tree that the trainer reads."""
