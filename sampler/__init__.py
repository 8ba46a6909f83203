"""The sampler: claims slots, plays tool-calling episodes, scores them, settles groups. Needs no torch."""
