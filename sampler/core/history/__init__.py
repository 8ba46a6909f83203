"""Context policies rewrite the history when the context grows too long or the model loops. Guide: docs/train/context.md."""
