"""The engine keeper, a separate program: starts an engine, updates its weights, registers it."""
