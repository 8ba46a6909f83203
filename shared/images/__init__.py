"""Images: from a content block to the placeholder tokens of a prompt and the arrays that a vision model reads. No torch."""
