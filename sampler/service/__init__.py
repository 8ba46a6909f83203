"""The sampler process: what to claim, how much at once, and what all of its episodes share."""
