"""The engine keeper, a program of its own: starts an engine, gives it new weights, registers it."""
