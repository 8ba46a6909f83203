"""What a group's forward and backward cost, so that ranks get as much work: tokens through the matrices, pairs in attention.

Of each layer, per token: 12 d² multiplications in the matrices of a plain transformer of width d, and 2 d for each token that it
sees. So a token that sees 6 d others costs twice one that sees none.
"""

WIDTH = 4096  # of a model of about 8 billion parameters; for sharing out, half or twice of it matters little


def group_cost(num_tokens: int, num_records: int) -> float:
    """Of `num_records` sequences of `num_tokens` together, each taken to be of their mean length; in tokens that see none."""
    mean_seen = num_tokens / max(num_records, 1) / 2
    return num_tokens * (1 + mean_seen / (6 * WIDTH))
