"""The league table: pay-off and Elo from the seats' scores, with bounded reads."""

import json
import math
from typing import Any

import pytest

from shared.documents import Record
from shared.documents.actors import Seated
from shared.documents.states import RecordStatus
from shared.store import Store
from tandem.commands.connect import console
from tandem.commands.league import _print
from tandem.evaluation.league import MIDDLE, Games, elo, league_of, ranked
from tests.shared.builders import claim, import_tasks


def seat(policy: str, score: float | None, *versions: int, actor: str = "Bob") -> Seated:
    return Seated(actor=actor, policy=policy, turns=1, versions=list(versions), score=score)


def record(number: int, **actors: Seated) -> Record:
    values: dict[str, Any] = {"tid": "t", "split": "train", "policy": "main", "source": "s", "worker": "w"}
    return Record(id=f"r{number}", task="t", traj_id=number, attempt=1, score=1.0, actors=actors, **values)


def match(number: int, mine: float, theirs: float) -> Record:
    return record(number, X=seat("main", mine, 41, 43), O=seat("main@7", theirs, 7, actor="Past"))


def test_a_pinned_version_and_the_same_version_when_it_was_new_are_one_player() -> None:
    old = record(1, X=seat("main", 1.0, 7), O=seat("main@3", 0.0, 3))
    league = league_of([match(0, 0.0, 1.0), old])
    assert set(league.games) == {"main 43", "main 7", "main 3"}
    assert league.games["main 7"]["main 3"] == Games(1, 1, 0)
    assert league.games["main 7"]["main 43"] == Games(1, 1, 0)
    assert league.games["main 43"]["main 7"] == Games(1, 0, 0)


def test_versions_are_taken_together_and_actors_are_players_if_asked() -> None:
    games = [match(0, 1.0, 0.0), match(1, 0.5, 0.5), match(2, 0.0, 1.0)]
    assert set(league_of(games, every=10).games) == {"main 40", "main 0"}
    by_actor = league_of(games, "actor")
    assert by_actor.games["Bob"]["Past"] == Games(3, 1, 1)
    assert by_actor.games["Bob"]["Past"].rate == 0.5
    api = record(3, X=seat("main", 1.0, 7), O=seat("model:judge-api", 0.0))
    assert set(league_of([api]).games) == {"main 7", "judge-api"}
    frozen = record(4, X=seat("main", 1.0, 7), O=seat("main@frozen", 0.0, 6))
    assert set(league_of([frozen]).games) == {"main 7", "main 6"}


def test_a_player_does_not_play_itself_and_seats_without_scores_do_not_play() -> None:
    mirror = record(0, X=seat("main", 1.0, 7), O=seat("main", 0.0, 7))
    alone = record(1, X=seat("main", 1.0, 7), O=seat("main@3", None, 3))
    league = league_of([mirror, alone])
    assert (league.games, league.episodes, league.unscored) == ({}, 2, 1)


def test_ratings_are_those_that_the_results_make_most_likely() -> None:
    """90 of 100 is 10 to the 1/400 … : log10(9) · 400 = 382 points apart, but for a tenth of a draw."""
    games = {"A": {"B": Games(10_000, 9_000, 0)}, "B": {"A": Games(10_000, 1_000, 0)}}
    ratings = elo(games)
    assert ratings["A"] - ratings["B"] == pytest.approx(400 * math.log10(9), abs=0.1)
    assert ratings["A"] + ratings["B"] == pytest.approx(2 * MIDDLE, abs=0.5)
    assert ranked(ratings) == ["A", "B"]
    never_lost = elo({"A": {"B": Games(5, 5, 0)}, "B": {"A": Games(5, 0, 0)}})
    assert 1500 < never_lost["A"] < 2000
    drawn = elo({"A": {"B": Games(4, 0, 4)}, "B": {"A": Games(4, 0, 4)}})
    assert drawn == pytest.approx({"A": MIDDLE, "B": MIDDLE})


def test_ratings_go_through_common_opponents() -> None:
    """A beats B as B beats C, and A never met C."""
    won, lost = Games(40, 30, 0), Games(40, 10, 0)
    ratings = elo({"A": {"B": won}, "B": {"A": lost, "C": won}, "C": {"B": lost}})
    assert ratings["B"] == pytest.approx(MIDDLE, abs=1)
    assert ratings["A"] - ratings["B"] == pytest.approx(ratings["B"] - ratings["C"], abs=1)
    assert ratings["A"] - ratings["B"] > 150


def test_a_long_chain_of_versions_is_as_long_as_its_links() -> None:
    """200 versions, each of which beats the one before 6 to 4; and a group that met none of them."""
    games: dict[str, dict[str, Games]] = {f"v{k}": {} for k in range(200)}
    for k in range(199):
        games[f"v{k + 1}"][f"v{k}"] = Games(10, 6, 0)
        games[f"v{k}"][f"v{k + 1}"] = Games(10, 4, 0)
    ratings = elo({**games, "X": {"Y": Games(10, 6, 0)}, "Y": {"X": Games(10, 4, 0)}})
    link = 400 * math.log10(6.05 / 4.05)
    for k in (0, 60, 99, 100, 198):
        assert ratings[f"v{k + 1}"] - ratings[f"v{k}"] == pytest.approx(link, abs=0.01)
    assert ratings["v0"] + ratings["v199"] == pytest.approx(2 * MIDDLE, abs=0.01)
    assert (ratings["X"] + ratings["Y"], ratings["X"] - ratings["Y"]) == pytest.approx((2 * MIDDLE, link), abs=0.01)
    assert elo({}) == {}


def test_the_table_is_printed_and_readable_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    league = league_of([match(k, float(k % 4 > 0), float(k % 4 == 0)) for k in range(12)], every=10)
    assert console() is not None
    _print("selfplay", league)
    shown = capsys.readouterr().out
    assert "│ main 40 │ 1" in shown
    assert "0.75 (12)" in shown
    found = json.loads(json.dumps(league.to_json()))
    assert [(row["player"], row["games"], row["won"], row["lost"]) for row in found["players"]] == [
        ("main 40", 12, 9, 3),
        ("main 0", 12, 3, 9),
    ]
    _print("selfplay", league_of([]))
    assert "Score(value, actors={…})" in capsys.readouterr().out


async def test_no_more_records_are_read_than_the_limit(store: Store) -> None:
    await import_tasks(store, 30, num_generations=1)
    for k in range(30):
        got = await claim(store)
        await store.records.start(got, "w")
        actors = {"X": seat("main", 1.0, k).to_mongo()} if k % 2 else {}
        await store.records.move(
            got.record_id, RecordStatus.SCORED, {"score": 1.0, **({"actors": actors} if actors else {})}
        )
        await store.tasks.finish_slot(got, 1.0)
    await store.database.command("profile", 2)
    found = await store.questions.seated_records("train", 8)
    await store.database.command("profile", 0)
    assert [one.actors["X"].versions for one in found] == [[29], [27], [25], [23]]
    row = await store.database["system.profile"].find_one({"op": "query", "ns": {"$regex": "records$"}})
    assert row is not None
    assert row["docsExamined"] <= 8
