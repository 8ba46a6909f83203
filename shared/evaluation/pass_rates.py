"""The estimates that an evaluation reports. Pure functions; each gives the source of its formula.

Intervals are over tasks: the episodes of one task are not independent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z_95 = 1.959964
RESAMPLES = 2_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def pass_at_k(n: int, passed: int, k: int) -> float:
    """Probability that at least one of k episodes passes, unbiased from n >= k episodes of which `passed` did.

    1 - C(n - c, k) / C(n, k): Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {n} episodes; expected 1 <= k <= episodes")
    return 1.0 - math.comb(n - passed, k) / math.comb(n, k)


def wilson(values: Sequence[float]) -> Estimate:
    """Mean of values in [0, 1], one per task, with Wilson's score interval, tasks being the trials.

    Wilson 1927; Brown, Cai, DasGupta 2001. Correct for one episode per task, conservative for several, since values in
    [0, 1] vary at most as much as 0 and 1 do. Never empty, even if all values are 0 or all are 1.
    """
    n = len(values)
    mean = math.fsum(values) / n
    z2 = Z_95 * Z_95
    center = (mean + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 * math.sqrt(max(0.0, mean * (1 - mean)) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return Estimate(mean, max(0.0, center - half), min(1.0, center + half))


def bootstrap(values: Sequence[float], *, seed: int = 0) -> Estimate:
    """Mean of values, one per task, with the percentile bootstrap over tasks (Efron 1979). Deterministic."""
    n = len(values)
    all_N = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)
    at_once = max(1, 1_000_000 // n)
    means = np.concatenate(
        [
            all_N[rng.integers(n, size=(min(at_once, RESAMPLES - start), n))].mean(axis=1)
            for start in range(0, RESAMPLES, at_once)
        ]
    )
    low, high = np.quantile(means, (0.025, 0.975))
    return Estimate(math.fsum(values) / n, float(low), float(high))
