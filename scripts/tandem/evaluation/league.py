"""A league table from the documents: who played whom, with which results, and Elo ratings. Pure functions over records.

A player is a policy at a version (`main 40`, pinned to it or not), an API model, or, by actor, an actor's name. Two seats
of one episode with scores of their own are one game: the higher score wins, equal scores are a draw. Two seats of the same player
are no game. A seat with turns of several versions counts for the newest of them.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shared.documents import Record
from shared.documents.actors import Seated, model_of, weights_of

By = Literal["version", "actor"]
MIDDLE = 1500.0  # the rating of an average player
PRIOR = 0.1  # draws more of each pair that met
_ROUNDS = 1000
_CLOSE = 1e-9
_LONGEST = 1.0  # step between two who met, in natural logarithms: a longer one may overshoot


@dataclass(slots=True)
class Games:
    """Of one player against others, or one other. `points`: a win is 1, a draw a half."""

    played: int = 0
    won: int = 0
    drawn: int = 0

    @property
    def points(self) -> float:
        return self.won + self.drawn / 2

    @property
    def rate(self) -> float:
        return self.points / self.played

    def add(self, mine: float, other: float) -> None:
        self.played += 1
        self.won += mine > other
        self.drawn += mine == other


@dataclass(slots=True)
class League:
    """`games`: {player: {other: games}}. `episodes`: that were read; `unscored`: of those, without two seats that have scores."""

    games: dict[str, dict[str, Games]] = field(default_factory=dict)
    episodes: int = 0
    unscored: int = 0

    def total(self, player: str) -> Games:
        summed = Games()
        for games in self.games[player].values():
            summed.played += games.played
            summed.won += games.won
            summed.drawn += games.drawn
        return summed

    def to_json(self) -> dict[str, Any]:
        ratings = elo(self.games)
        return {
            "episodes": self.episodes,
            "unscored": self.unscored,
            "players": [
                {"player": name, "elo": ratings[name], **_values(self.total(name))} for name in ranked(ratings)
            ],
            "pay_off": {
                name: {other: _values(games) for other, games in others.items()} for name, others in self.games.items()
            },
        }


def league_of(records: Iterable[Record], by: By = "version", every: int = 1) -> League:
    """`every`: versions from one player to the next: with 10, versions 40 to 49 are the player `40`."""
    league = League()
    for record in records:
        league.episodes += 1
        scored = [(name, seat) for name, seat in record.actors.items() if seat.score is not None]
        league.unscored += len(scored) < 2
        for (_, one), (_, other) in combinations(scored, 2):
            _add(league, _player(one, by, every), one.score, _player(other, by, every), other.score)
    return league


def _add(league: League, one: str, score: float | None, other: str, others: float | None) -> None:
    if one == other or score is None or others is None:
        return
    league.games.setdefault(one, {}).setdefault(other, Games()).add(score, others)
    league.games.setdefault(other, {}).setdefault(one, Games()).add(others, score)


def _player(seat: Seated, by: By, every: int) -> str:
    if by == "actor":
        return seat.actor
    model = model_of(seat.policy)
    if model is not None:
        return model
    policy, at = weights_of(seat.policy)
    version = at if at is not None else max(seat.versions, default=0)
    return f"{policy} {version // every * every}"


def elo(games: Mapping[str, Mapping[str, Games]]) -> dict[str, float]:
    """Ratings by which the results are most likely, on Elo's scale (Bradley-Terry, by Newton's method).

    The order of games does not matter. A tenth of a draw more between two players who met keeps the rating of a player that
    only won, or only lost, finite; it weighs nothing against real games, also along a chain of hundreds of versions. The
    average of players who met, directly or through others, is 1500: games say nothing of players who are not connected.
    """
    names = list(games)
    number = {name: k for k, name in enumerate(names)}
    pairs = [(number[one], number[other], met) for one, others in games.items() for other, met in others.items()]
    ones, others = np.array([p[0] for p in pairs], int), np.array([p[1] for p in pairs], int)
    points = np.array([met.points + PRIOR / 2 for *_, met in pairs])
    played = np.array([met.played + PRIOR for *_, met in pairs])
    same = _connected(len(names), ones, others)
    ratings = np.zeros(len(names))
    for _ in range(_ROUNDS):
        expected = 1 / (1 + np.exp(ratings[others] - ratings[ones]))
        missing = np.zeros(len(names))
        np.add.at(missing, ones, points - played * expected)
        slopes = played * expected * (1 - expected)
        curvature = same.astype(
            float
        )  # moves all players of a group alike, which no game decides: it makes the step unique
        np.add.at(curvature, (ones, ones), slopes)
        np.add.at(curvature, (ones, others), -slopes)
        step = np.linalg.solve(curvature, missing)
        largest = float(np.abs(step[ones] - step[others]).max(initial=0.0))
        ratings += step * min(1.0, _LONGEST / max(largest, _CLOSE))
        if largest < _CLOSE:
            break
    return {name: MIDDLE + 400 / math.log(10) * float(ratings[k]) for name, k in number.items()}


def _connected(num: int, ones: npt.NDArray[np.int_], others: npt.NDArray[np.int_]) -> npt.NDArray[np.bool_]:
    """Which players met, directly or through others."""
    group = np.arange(num)
    while True:
        before = group.copy()
        np.minimum.at(group, ones, before[others])
        group = group[group]
        if np.array_equal(group, before):
            return np.asarray(group[:, None] == group[None, :])


def ranked(ratings: Mapping[str, float]) -> list[str]:
    """The best first."""
    return sorted(ratings, key=lambda player: (-ratings[player], player))


def _values(games: Games) -> dict[str, Any]:
    lost = games.played - games.won - games.drawn
    return {"games": games.played, "won": games.won, "drawn": games.drawn, "lost": lost}
