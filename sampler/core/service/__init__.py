"""The sampler process: which slots to claim, how many episodes to run at once, and what all episodes share."""
