"""A completed group as plain values: what the rules and the estimators look at, read once from its documents.

A turn here is an answered request to the engine, as in the token tree; requests without an answer have no advantage.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from shared.documents import DispatchedSamplingTask, Record
from shared.documents.passing import is_pass
from shared.documents.states import Termination
from shared.tokens.flatten import answered

OVER_LONG = {Termination.LENGTH_LIMIT.value, Termination.TURNS_LIMIT.value}


@dataclass(frozen=True, slots=True)
class ScoredTurn:
    """`score` is what the sampler says this turn earned, None where it says nothing. `observation` names what the model saw."""

    dispatch: str
    score: float | None
    observation: str


@dataclass(frozen=True, slots=True)
class ScoredEpisode:
    """One scored episode. Without a turn (its first prompt was too long, say) there is nothing to train on."""

    record: str
    score: float
    over_long: bool
    turns: tuple[ScoredTurn, ...]

    @property
    def num_turns(self) -> int:
        """The policy's own."""
        return len(self.turns)

    @property
    def correct(self) -> bool:
        return is_pass(self.score)


def read_episode(
    record: Record, score: float, dispatches: Sequence[DispatchedSamplingTask], *, observations: bool
) -> ScoredEpisode:
    """`observations`: whether anybody will look at them (hashing them takes 2 ms for 160 turns)."""
    turns = tuple(ScoredTurn(d.id, d.score, observation(d) if observations else "") for d in answered(dispatches))
    return ScoredEpisode(record.id, score, record.termination in OVER_LONG, turns)


def observation(dispatch: DispatchedSamplingTask) -> str:
    """A hash of what the model was told since its last reply: roles, names and contents, no ids of calls."""
    replies = [k for k, message in enumerate(dispatch.messages) if message.get("role") == "assistant"]
    told = dispatch.messages[replies[-1] + 1 :] if replies else dispatch.messages
    seen = [[message.get(name) for name in ("role", "name", "content")] for message in told]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


def turn_rewards(episode: ScoredEpisode, reward: float) -> list[float]:
    """What each turn earned: its own score, and the last turn what is left of `reward`. They add up to `reward`."""
    earned = [turn.score or 0.0 for turn in episode.turns]
    earned[-1] += reward - math.fsum(earned)
    return earned
