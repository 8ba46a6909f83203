"""Self-play: a policy in several seats is trained seat by seat, each with its own scores."""

from typing import Any, ClassVar

import pytest

from sampler.actors.rounds_sampler import RoundsSampler
from sampler.scorers import Score, register_scorer
from shared.documents import DBRecordData
from shared.store import Store
from tandem.audit.run import audit
from tests.sampler.actors.tables import played

ACTORS: dict[str, Any] = {"Me": {"policy": "main"}, "Past": {"policy": "main", "at": 40}}
MIRROR: dict[str, Any] = {
    "zero_variance_tolerance": 1e-6,
    "actors": ACTORS,
    "lineups": [{"X": "Me", "O": "Me"}],
    "rounds": "X -> O -> X",
}


class Match(RoundsSampler):
    """What X and O get in slots 0 to 3."""

    results: ClassVar[list[tuple[float, float]]] = [(1, 0), (0, 1), (1, 0), (0.5, 0.5)]

    async def evaluate_record(self) -> Score:
        x, o = self.results[self.claim.traj_id]
        return Score(x, actors={"X": x, "O": o})


class OnlyXDiffers(Match):
    results: ClassVar[list[tuple[float, float]]] = [(1, 1), (0, 1), (1, 1), (0, 1)]


class AllAlike(Match):
    results: ClassVar[list[tuple[float, float]]] = [(1, 0)] * 4


def advantages(data: list[DBRecordData]) -> list[list[float]]:
    return [[used.advantage for used in one.dispatches] for one in data]


async def test_each_seats_turns_are_compared_with_the_same_seats_of_the_group(store: Store) -> None:
    data = await played(store, Match, 4, **MIRROR)
    assert advantages(data) == [
        [0.375, -0.375, 0.375],
        [-0.625, 0.625, -0.625],
        [0.375, -0.375, 0.375],
        [-0.125, 0.125, -0.125],
    ]
    assert [[used.trained for used in one.dispatches] for one in data] == [[True] * 3] * 4
    assert {(one.group_size, one.policy) for one in data} == {(4, "main")}
    records = await store.records.get_many([data[0].record])
    assert {name: seat.score for name, seat in records[data[0].record].actors.items()} == {"X": 1.0, "O": 0.0}
    report = await audit(store)
    assert report.ok, report


async def test_a_seat_whose_scores_do_not_differ_is_context_for_the_other(store: Store) -> None:
    data = await played(store, OnlyXDiffers, 4, **MIRROR)
    assert advantages(data) == [[0.5, 0.0, 0.5], [-0.5, 0.0, -0.5]] * 2
    assert [[used.trained for used in one.dispatches] for one in data] == [[True, False, True]] * 4
    assert all(one.num_trained_tokens < one.num_tokens for one in data)
    report = await audit(store)
    assert report.ok, report


async def test_a_group_where_no_seat_differs_is_no_data(store: Store) -> None:
    data = await played(store, AllAlike, 4, **MIRROR)
    assert {(one.status, one.group_size) for one in data} == {("dropped", 0)}
    assert {one.reason for one in data} == {"zero variance: scores differ by less than 1e-06"}
    assert (await audit(store)).ok


@pytest.mark.parametrize("seat", ["X", "O"])
async def test_a_league_compares_the_learner_in_a_seat_with_itself_in_that_seat(store: Store, seat: str) -> None:
    """Slots 0 and 2 have it as X, 1 and 3 as O. X is 1, 1 and O is 1, 0.5: only O's scores differ."""
    lineups = [{"X": "Me", "O": "Past"}, {"X": "Past", "O": "Me"}]
    data = await played(store, Match, 4, **{**MIRROR, "lineups": lineups})
    by_seat = {"X": data[0::2], "O": data[1::2]}
    assert advantages(by_seat[seat]) == {"X": [[0.0, 0.0], [0.0, 0.0]], "O": [[0.25], [-0.25]]}[seat]
    assert {one.group_size for one in by_seat[seat]} == {0 if seat == "X" else 2}
    assert (await audit(store)).ok


@register_scorer("seats_that_spoke", needs_answer=False)
def seats_that_spoke(utterances: list[dict[str, str]]) -> float:
    return sum(10.0**k * (turn["actor"] == "Past") for k, turn in enumerate(utterances))


async def test_a_scorer_reads_what_every_seat_said(store: Store) -> None:
    lineups = [{"X": "Past", "O": "Me"}]
    data = await played(store, RoundsSampler, 2, **{**MIRROR, "lineups": lineups, "default_scorer": "seats_that_spoke"})
    assert [one.reward for one in data] == [101.0, 101.0]
