"""New weights on their way to the engines: whole, as changes, or by broadcast."""
