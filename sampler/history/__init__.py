"""Context policies: another history when the context grows too long or goes round in circles. docs/context.md is the guide."""
