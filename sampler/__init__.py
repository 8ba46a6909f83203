"""The sampler: claims slots, plays tool-calling episodes, scores them and settles groups. Needs no torch."""
