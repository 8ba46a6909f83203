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
    """`score`: the turn's own score from the sampler, or None. `observation`: a hash of the model's input."""

    dispatch: str
    score: float | None
    observation: str


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
    turns = tuple(ScoredTurn(d.id, d.score, observation(d) if observations else "") for d in answered(dispatches))
    return ScoredEpisode(record.id, score, record.termination in OVER_LONG, turns)


def observation(dispatch: DispatchedSamplingTask) -> str:
    """A hash of the messages since the model's last reply: roles, names and contents, without call ids."""
    replies = [k for k, message in enumerate(dispatch.messages) if message.get("role") == "assistant"]
    told = dispatch.messages[replies[-1] + 1 :] if replies else dispatch.messages
    seen = [[message.get(name) for name in ("role", "name", "content")] for message in told]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


def turn_rewards(episode: ScoredEpisode, reward: float) -> list[float]:
    """Reward of each turn: its own score; the last turn gets the remainder, so that they sum to `reward`."""
    earned = [turn.score or 0.0 for turn in episode.turns]
    earned[-1] += reward - math.fsum(earned)
    return earned
