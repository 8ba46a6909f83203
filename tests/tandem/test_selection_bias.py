"""The bias ledger's test: silent where the trained are a fair share, loud where they are not, also where groups share a fate."""

import math

import numpy as np
import pytest

from tandem.evaluation.selection_bias import ALARM_P, LEAST_GROUPS, chi2_tail, compare, part, quartiles

Rows = list[tuple[int, str, bool]]


@pytest.mark.parametrize("x", [0.01, 0.5, 3.84, 16.8, 60.0, 300.0])
def test_the_tail_of_chi_squared_is_its_closed_form_where_it_has_one(x: float) -> None:
    """One degree of freedom: erfc(√(x/2)). An even number 2m: e^(-x/2) Σ_{k<m} (x/2)^k / k!"""
    assert math.isclose(chi2_tail(x, 1), math.erfc(math.sqrt(x / 2)), rel_tol=1e-9)
    for m in (1, 2, 5, 20):
        closed = math.exp(-x / 2) * math.fsum((x / 2) ** k / math.factorial(k) for k in range(m))
        assert math.isclose(chi2_tail(x, 2 * m), closed, rel_tol=1e-9)


def groups_of(seed: int, groups: int, keep: dict[str, float], *, whole: bool) -> Rows:
    """Groups of eight alike episodes; `keep`: by category how likely one is trained, as a `whole` group or each."""
    rng = np.random.default_rng(seed)
    rows: Rows = []
    names = list(keep)
    for group in range(groups):
        own = str(rng.choice(names))
        together = rng.random()
        for _ in range(8):
            name = own if rng.random() < 0.9 else str(rng.choice(names))
            rows.append((group, name, bool((together if whole else rng.random()) < keep[own if whole else name])))
    return rows


@pytest.mark.parametrize("whole", [True, False])
def test_a_fair_selection_rings_about_as_often_as_it_says(whole: bool) -> None:
    """Groups that are dropped as a whole: Pearson's test, which takes episodes for independent, would ring for most of them."""
    p = [compare(groups_of(seed, 100, {"a": 0.5, "b": 0.5, "c": 0.5}, whole=whole)).p for seed in range(300)]
    rings = sum(one is not None and one < 0.05 for one in p) / len(p)
    assert 0.01 <= rings <= 0.10, rings


@pytest.mark.parametrize("whole", [True, False])
def test_an_unfair_selection_rings(whole: bool) -> None:
    found = compare(groups_of(1, 200, {"short": 0.9, "long": 0.4}, whole=whole))
    assert found.is_alarm(comparisons=6), found
    assert {c.name: c.of_trained < c.of_decided for c in found.categories} == {"short": False, "long": True}


def test_a_small_difference_that_is_certain_is_no_alarm() -> None:
    found = compare(groups_of(2, 6_000, {"a": 0.52, "b": 0.48}, whole=False))
    assert found.p is not None
    assert found.p < ALARM_P / 6
    assert not found.is_alarm(6)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "no episode is decided"),
        ([(g, "a", g % 2 == 0) for g in range(50)], "one category: nothing to compare"),
        ([(g, "ab"[g % 2], False) for g in range(50)], "nothing is trained"),
        ([(g, "ab"[g % 2], True) for g in range(50)], "everything that is decided is trained"),
        ([(g, "ab"[g % 2], g % 3 == 0) for g in range(LEAST_GROUPS - 1)], "19 groups; at least 20 are needed"),
        ([(g, "ab"[g % 2], g < 19) for g in range(90)], "19 trained groups; at least 20 are needed"),
    ],
)
def test_where_nothing_can_be_said_the_reason_is(rows: Rows, reason: str) -> None:
    assert (compare(rows).p, compare(rows).reason) == (None, reason)


def test_parts_are_named_by_their_bounds_and_sort_by_size() -> None:
    bounds = quartiles([1, 2, 3, 4, 5])
    assert [part(x, bounds) for x in (1, 3, 4, 9)] == [
        "1: up to 2",
        "2: above 2 up to 3",
        "3: above 3 up to 4",
        "4: above 4",
    ]
    assert quartiles([7, 7, 7]) == [7.0]
    assert part(None, bounds) == "–"
