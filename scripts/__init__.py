"""Programs around the services. Only `scripts.launch` is a package; it is run from the repository root."""
