"""Messages of an episode: the first ones, a parsed reply as a message, the transcript for its scorer."""
