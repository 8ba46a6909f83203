"""An episode's tokens: from its dispatches to the token tree that the trainer reads."""
