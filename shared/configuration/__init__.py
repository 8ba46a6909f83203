"""Configuration of every service: flags, environment, YAML and defaults into one frozen model."""
