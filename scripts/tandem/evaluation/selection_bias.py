"""Whether what is trained is a fair share of what was sampled: a test of two distributions over the same categories.

Episodes of one group are alike and share their fate, so Pearson's chi-squared test would ring for nothing. This is its
second-order correction for clusters: J. N. K. Rao and A. J. Scott, "On chi-squared tests for multiway contingency tables with
cell proportions estimated from survey data", Annals of Statistics 12 (1984), with Satterthwaite's approximation (Biometrics
Bulletin 2, 1946).

    d_k     share of category k among the trained − its share among the decided
    T       Σ d_k² / (share of k among the decided)
    V       covariance of d over groups (linearized, groups being the sampled units)
    λ       eigenvalues of diag(share)^-½ V diag(share)^-½;  under fairness T ~ Σ λ_i χ²_1
    p       P(χ²_ν ≥ T / a),  a = Σλ² / Σλ,  ν = (Σλ)² / Σλ²
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

ALARM_P = 0.01  # of a run's whole ledger: divided by the number of comparisons (Bonferroni)
ALARM_DISTANCE = 0.05  # total variation: a difference that matters
# Fewer say nothing, and so do many of which fewer are trained: the variance of a share of 6 groups is estimated too small, and
# the test rang for one in five fair selections.
LEAST_GROUPS = 20
TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Category:
    """One row: counts and shares of episodes."""

    name: str
    decided: int
    trained: int
    of_decided: float
    of_trained: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """`distance`: total variation between trained and decided. `p`: None if nothing can be said, for the `reason`."""

    categories: list[Category]
    groups: int
    distance: float
    statistic: float | None
    degrees: float | None
    p: float | None
    reason: str = ""

    def is_alarm(self, comparisons: int) -> bool:
        return self.p is not None and self.p < ALARM_P / comparisons and self.distance >= ALARM_DISTANCE


def compare(rows: Iterable[tuple[Hashable, str, bool]]) -> Comparison:
    """Of (group, category, is trained) of every decided episode."""
    decided: dict[Hashable, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for group, name, is_trained in rows:
        count = decided[group][name]
        count[0] += 1
        count[1] += is_trained
    names = sorted({name for counts in decided.values() for name in counts})
    counts_GK = np.array([[counts.get(name, [0, 0]) for name in names] for counts in decided.values()])
    if not len(counts_GK):
        return Comparison([], 0, 0.0, None, None, None, "no episode is decided")
    all_GK, trained_GK = counts_GK[:, :, 0].astype(float), counts_GK[:, :, 1].astype(float)
    all_K, trained_K = all_GK.sum(axis=0), trained_GK.sum(axis=0)
    share_K = all_K / all_K.sum()
    of_trained_K = trained_K / max(trained_K.sum(), 1.0)
    categories = [
        Category(name, int(all_K[k]), int(trained_K[k]), float(share_K[k]), float(of_trained_K[k]))
        for k, name in enumerate(names)
    ]
    distance = float(np.abs(of_trained_K - share_K).sum() / 2) if trained_K.sum() else 0.0
    trained_groups = int((trained_GK.sum(axis=1) > 0).sum())
    reason = _silence(len(names), len(counts_GK), trained_groups, trained_K.sum(), all_K.sum())
    if reason:
        return Comparison(categories, len(counts_GK), distance, None, None, None, reason)
    tested = _tested(all_GK, trained_GK, share_K, of_trained_K)
    if tested is None:
        return Comparison(categories, len(counts_GK), distance, None, None, None, "every group has the same shares")
    return Comparison(categories, len(counts_GK), distance, *tested)


def _silence(names: int, groups: int, trained_groups: int, trained: float, decided: float) -> str:
    """Why nothing can be said; empty if something can."""
    if names < 2:
        return "one category: nothing to compare"
    if trained == 0:
        return "nothing is trained"
    if trained == decided:
        return "everything that is decided is trained"
    if groups < LEAST_GROUPS:
        return f"{groups} groups; at least {LEAST_GROUPS} are needed"
    if trained_groups < LEAST_GROUPS:
        return f"{trained_groups} trained groups; at least {LEAST_GROUPS} are needed"
    return ""


def _tested(
    all_GK: np.ndarray, trained_GK: np.ndarray, share_K: np.ndarray, of_trained_K: np.ndarray
) -> tuple[float, float, float] | None:
    """(statistic, degrees of freedom, p); None where nothing varies."""
    groups = len(all_GK)
    d_K = of_trained_K - share_K
    residual_GK = (trained_GK - of_trained_K * trained_GK.sum(axis=1, keepdims=True)) / trained_GK.sum()
    residual_GK -= (all_GK - share_K * all_GK.sum(axis=1, keepdims=True)) / all_GK.sum()
    scale_K = 1.0 / np.sqrt(share_K)
    scaled_GK = residual_GK * scale_K
    covariance_KK = groups / (groups - 1) * scaled_GK.T @ scaled_GK
    eigenvalues = np.clip(np.linalg.eigvalsh(covariance_KK), 0.0, None)
    total, squares = float(eigenvalues.sum()), float((eigenvalues**2).sum())
    if total <= TINY:
        return None
    statistic = float(((d_K * scale_K) ** 2).sum()) / (squares / total)
    degrees = total**2 / squares
    return statistic, degrees, chi2_tail(statistic, degrees)


def chi2_tail(x: float, degrees: float) -> float:
    """P(χ² ≥ x): the regularized upper incomplete gamma function Q(degrees / 2, x / 2), by its series below a + 1 and by Lentz's
    continued fraction above (Press et al., Numerical Recipes, 3rd edition, section 6.2)."""
    a, z = degrees / 2, x / 2
    if z <= 0:
        return 1.0
    front = math.exp(-z + a * math.log(z) - math.lgamma(a))
    if z < a + 1:
        term = total = 1.0 / a
        n = a
        while abs(term) > abs(total) * 1e-15:
            n += 1
            term *= z / n
            total += term
        return max(0.0, 1.0 - total * front)
    b = z + 1 - a
    c, d = 1e300, 1 / b
    fraction = d
    for i in range(1, 10_000):
        an = -i * (i - a)
        b += 2
        d = 1 / _not_zero(an * d + b)
        c = _not_zero(b + an / c)
        fraction *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return min(1.0, front * fraction)


def _not_zero(value: float) -> float:
    return value if abs(value) > 1e-300 else 1e-300


def quartiles(values: Sequence[float]) -> list[float]:
    """Bounds of four parts of equal size; fewer where many values are the same."""
    if not values:
        return []
    return sorted({float(bound) for bound in np.quantile(np.asarray(values, dtype=float), (0.25, 0.5, 0.75))})


def part(value: float | None, bounds: Sequence[float], unit: str = "") -> str:
    """The part that a value is in, as words that sort by its size: `1: up to 120`."""
    if value is None:
        return "–"
    at = sum(value > bound for bound in bounds)
    low = f"above {bounds[at - 1]:.4g}" if at else ""
    high = f"up to {bounds[at]:.4g}" if at < len(bounds) else ""
    return f"{at + 1}: " + " ".join(filter(None, [low, high])) + unit
