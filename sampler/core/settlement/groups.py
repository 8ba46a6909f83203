"""A completed group as plain values, read once from its documents: the input of rules and estimators.

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
    """`score`: the turn's own score from the sampler, or None. `observation`: a hash of the model's input. `number`: of the
    turn in the episode. `while_open`: numbers of turns that had no reply yet when this one was asked (of other threads)."""

    dispatch: str
    score: float | None
    observation: str
    number: int = -1
    while_open: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ScoredEpisode:
    """One scored episode. An episode without turns (its first prompt was too long, say) is not trained on."""

    record: str
    score: float
    over_long: bool
    turns: tuple[ScoredTurn, ...]

    @property
    def num_turns(self) -> int:
        """Turns of the policy itself."""
        return len(self.turns)

    @property
    def correct(self) -> bool:
        return is_pass(self.score)


def read_episode(
    record: Record, score: float, dispatches: Sequence[DispatchedSamplingTask], *, observations: bool
) -> ScoredEpisode:
    """`observations`: compute their hashes only when needed (2 ms for 160 turns)."""
    turns = tuple(
        ScoredTurn(d.id, d.score, observation(d) if observations else "", d.turn, tuple(d.while_open))
        for d in answered(dispatches)
    )
    return ScoredEpisode(record.id, score, record.termination in OVER_LONG, turns)


def observation(dispatch: DispatchedSamplingTask) -> str:
    """A hash of the messages since the model's last reply: roles, names and contents, without call ids."""
    replies = [k for k, message in enumerate(dispatch.messages) if message.get("role") == "assistant"]
    since_reply = dispatch.messages[replies[-1] + 1 :] if replies else dispatch.messages
    seen = [[message.get(name) for name in ("role", "name", "content")] for message in since_reply]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


def turn_rewards(episode: ScoredEpisode, reward: float) -> list[float]:
    """Reward of each turn: its own score; the last turn gets the remainder, so that they sum to `reward`. If threads end the
    episode at the same time, there are several last turns, and each gets an equal part."""
    earned = [turn.score or 0.0 for turn in episode.turns]
    last = last_turns(episode.turns)
    remainder = reward - math.fsum(earned)
    for at in last:
        earned[at] += remainder / len(last)
    return earned


def last_turns(turns: Sequence[ScoredTurn]) -> list[int]:
    """Places of the turns after whose replies no other was asked."""
    if not turns[-1].while_open:
        return [len(turns) - 1]
    return [at for at, turn in enumerate(turns) if all(_at_once(turn, later) for later in turns[at + 1 :])]


def follows(earlier: ScoredTurn, later: ScoredTurn) -> bool:
    """Whether `later` was asked after the reply of `earlier`, which may have led to it."""
    return not _at_once(earlier, later)


def _at_once(earlier: ScoredTurn, later: ScoredTurn) -> bool:
    return earlier.number in later.while_open
