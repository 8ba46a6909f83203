"""What an episode is, from its documents alone."""
