"""One episode: `sampler` has the class to inherit from, `episode` what the process does with it, from claim to outcome."""
