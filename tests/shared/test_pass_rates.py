"""Estimates compared with their definitions."""

import itertools
import math
import random

import pytest

from shared.documents.passing import PASS_SCORE, num_passed
from shared.evaluation.pass_rates import bootstrap, pass_at_k, wilson


@pytest.mark.parametrize(("n", "passed"), [(1, 0), (1, 1), (4, 0), (4, 1), (5, 3), (6, 6)])
def test_pass_at_k_is_the_share_of_all_choices_of_k_episodes_with_a_pass_among_them(n: int, passed: int) -> None:
    episodes = [1] * passed + [0] * (n - passed)
    for k in range(1, n + 1):
        chosen = list(itertools.combinations(episodes, k))
        assert pass_at_k(n, passed, k) == pytest.approx(sum(map(any, chosen)) / len(chosen))


@pytest.mark.parametrize("k", [0, 5])
def test_pass_at_k_needs_k_episodes(k: int) -> None:
    with pytest.raises(ValueError, match=r"expected 1 <= k <= episodes"):
        pass_at_k(4, 2, k)


def test_a_pass_is_a_full_score() -> None:
    assert num_passed([1.0, 0.999, 2.0, 0.0, -1.0]) == 2
    assert num_passed([0.7 + 0.2 + 0.1, 0.1 + 0.2 + 0.7]) == 2  # the first is 0.9999999999999999
    assert PASS_SCORE == 1.0


def test_wilson_solves_its_equation_and_is_never_empty() -> None:
    """Its bounds are the p with |mean - p| = z sqrt(p (1 - p) / n)."""
    for ones, n in ((0, 10), (10, 10), (3, 10), (50, 200)):
        found = wilson([1.0] * ones + [0.0] * (n - ones))
        assert found.value == ones / n
        for bound in (found.low, found.high):
            if 1e-9 < bound < 1 - 1e-9:
                assert abs(found.value - bound) == pytest.approx(
                    1.959964 * math.sqrt(bound * (1 - bound) / n), rel=1e-6
                )
        assert found.high - found.low > 0.05


def test_the_bootstrap_is_deterministic_and_has_the_width_of_a_mean() -> None:
    rng = random.Random(1)
    values = [rng.gauss(0.5, 0.2) for _ in range(400)]
    found = bootstrap(values)
    assert found == bootstrap(values)
    assert found.value == pytest.approx(math.fsum(values) / 400)
    assert found.high - found.low == pytest.approx(2 * 1.96 * 0.2 / 20, rel=0.2)
    assert bootstrap([0.25]).low == bootstrap([0.25]).high == 0.25
