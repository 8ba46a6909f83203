"""Configuration of every service: merges flags, environment, YAML and defaults into one frozen model."""
