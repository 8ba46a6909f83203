"""Advantages of one group's episodes from their rewards: pure functions, a list in, a list of the same length out.

Only scored episodes come here: failures of the plumbing have no reward and are no part of the statistics.
"""

import math
from collections.abc import Callable, Sequence

ZSCORE_EPSILON = 1e-6
ALIKE = 1e-12  # rewards this close are equal: their spread is rounding


def mean_baseline(rewards: Sequence[float]) -> list[float]:
    """A_i = R_i − mean(R): Dr. GRPO, arXiv 2503.20783; MiniRL, arXiv 2512.01374."""
    mean = math.fsum(rewards) / len(rewards)
    return [_zero_if_tiny(r - mean) for r in rewards]


def zscore(rewards: Sequence[float]) -> list[float]:
    """A_i = (R_i − mean(R)) / (std(R) + 1e-6), with the sample standard deviation: GRPO, arXiv 2402.03300."""
    centered = mean_baseline(rewards)
    if len(rewards) < 2:
        return centered
    std = math.sqrt(math.fsum(a * a for a in centered) / (len(rewards) - 1))
    return [a / (std + ZSCORE_EPSILON) for a in centered]


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    """A_i = R_i − mean of the others = K/(K−1) · (R_i − mean(R)): RLOO, arXiv 2402.14740. One episode alone: 0."""
    k = len(rewards)
    scale = k / (k - 1) if k > 1 else 1.0
    return [scale * a for a in mean_baseline(rewards)]


ESTIMATORS: dict[str, Callable[[Sequence[float]], list[float]]] = {
    "mean": mean_baseline,
    "zscore": zscore,
    "leave_one_out": leave_one_out,
}


def _zero_if_tiny(value: float) -> float:
    return 0.0 if abs(value) < ALIKE else value
