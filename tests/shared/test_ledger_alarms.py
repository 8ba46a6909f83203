"""The bias ledger as a whole, on simulated runs: how often it alarms where groups are drawn by lot, and where they are not."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from shared.store.views.ledger import SET_ASIDE, TRAINED, Fate
from tandem.viewer.ledger import Side, _side, categories

SHUFFLES = 100
# The ledger says 1 % for all of its comparisons together: of 100 fair runs, 5 or more alarm with a probability below 0.4 %.
MOST_FALSE = 4
EPISODES = 8  # of a group


def fates(seed: int, groups: int, is_trained: Callable[[Fate, float], bool]) -> list[Fate]:
    """Groups of alike episodes. `is_trained`: of an episode and its group's lot, 0 to 1."""
    draw = np.random.default_rng(seed)
    found: list[Fate] = []
    for group in range(groups):
        source = str(draw.choice(["gsm", "math", "code"], p=[0.6, 0.3, 0.1]))
        difficulty = str(draw.choice(["none pass", "some pass", "most pass", "all pass"]))
        length, lot = draw.lognormal(5, 0.6), draw.random()
        for k in range(EPISODES):
            tokens = int(length * draw.lognormal(0, 0.4))
            one = Fate(
                record=f"{group}:{k}",
                group=str(group),
                source=source,
                difficulty=difficulty,
                tokens=tokens,
                seconds=float(tokens * draw.lognormal(-3, 0.3)),
                turns=1 + int(draw.poisson(2)),
                version=6 * group // groups,
                termination=str(draw.choice(["answered", "max_turns"], p=[0.9, 0.1])),
                fate=SET_ASIDE,
                reason="",
            )
            found.append(replace(one, fate=TRAINED) if is_trained(one, lot) else one)
    return found


def sides(found: list[Fate]) -> list[Side]:
    names = categories(found)
    return [_side(name, found, of, len(names)) for name, of in names.items()]


@pytest.mark.parametrize(
    ("groups", "share"), [(60, 0.1), pytest.param(200, 0.1, marks=pytest.mark.thorough), (60, 0.5), (20, 0.9)]
)
def test_groups_that_are_drawn_by_lot_alarm_no_more_often_than_is_said(groups: int, share: float) -> None:
    runs = [sides(fates(seed, groups, lambda _, lot: lot < share)) for seed in range(SHUFFLES)]
    false = sum(any(side.is_alarm for side in run) for run in runs)
    assert false <= MOST_FALSE, f"{false} of {SHUFFLES}"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("by", "is_trained"),
    [
        ("sampled tokens", lambda one, lot: one.tokens < 250),
        ("source", lambda one, lot: one.source != "math"),
        ("source", lambda one, lot: lot < (0.3 if one.source == "math" else 0.9)),
    ],
    ids=["long episodes are dropped", "a source is dropped", "most of a source is dropped"],
)
def test_a_run_that_drops_long_episodes_or_a_source_alarms(
    by: str, is_trained: Callable[[Fate, float], bool], seed: int
) -> None:
    assert by in {side.name for side in sides(fates(seed, 200, is_trained)) if side.is_alarm}
