"""Publishing new weights to engines: complete, as changes, or by broadcast."""
