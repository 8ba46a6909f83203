"""One policy's share of a group: the turns that it took in each record, and what the rules and the estimator make of them.

    a share ─┬─ without scores of seats ─▶ rules ─▶ advantages
             └─ each seat's turns and scores ─▶ rules ─▶ advantages, of that seat alone ─▶ put together by record

In self-play a policy takes several seats, of which one wins and one loses: each seat's turns are compared with those of the same
seat in the group's other records (docs/bring/actors.md).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sampler.core.settings.groups import ESTIMATORS, GroupConfig
from sampler.core.settlement.advantages import group_advantages
from sampler.core.settlement.groups import ScoredEpisode, read_episode
from sampler.core.settlement.rules import RuleResult, judge
from shared.documents import DispatchedSamplingTask, Record
from shared.documents.actors import seat_of

NO_TURNS = "no seat's turns can be trained on"


@dataclass(frozen=True, slots=True)
class Part:
    """One policy's part of one record: its answered turns, and its score."""

    record: Record
    score: float
    dispatches: Sequence[DispatchedSamplingTask]


@dataclass(frozen=True, slots=True)
class Settlement:
    """The outcome of the rules for a group, and the advantages of the kept episodes, per dispatch. `context`: dispatches of kept
    episodes that have no loss."""

    verdict: RuleResult
    advantages: Mapping[str, Mapping[str, float]]  # {record: {dispatch: advantage}}
    masked: frozenset[str]
    context: frozenset[str] = frozenset()


def settle_share(
    share: Sequence[Part], num_generations: int, config: GroupConfig
) -> tuple[list[ScoredEpisode], Settlement]:
    """A pure function. The episodes are those of the whole parts, in order."""
    read = [_read(part, config) for part in share]
    seats = _by_seat(share)
    if seats.keys() <= {None}:
        return read, decide(read, num_generations, config)
    settled = [decide([_read(part, config) for part in parts], num_generations, config) for parts in seats.values()]
    return read, _together(read, settled)


def decide(episodes: Sequence[ScoredEpisode], num_generations: int, config: GroupConfig) -> Settlement:
    """Apply the rules and the estimator to one group: a pure function."""
    verdict = judge(episodes, num_generations, config)
    advantages = group_advantages(verdict.kept, verdict.rewards, config) if verdict.kept else []
    return Settlement(
        verdict,
        {
            e.record: {turn.dispatch: a for turn, a in zip(e.turns, of_turns, strict=True)}
            for e, of_turns in zip(verdict.kept, advantages, strict=True)
        },
        frozenset(e.record for e in verdict.kept if config.mask_overlong and e.over_long),
    )


def _read(part: Part, config: GroupConfig) -> ScoredEpisode:
    observations = ESTIMATORS.has(config.advantage, "observations")
    return read_episode(part.record, part.score, part.dispatches, observations=observations)


def _by_seat(share: Sequence[Part]) -> dict[str | None, list[Part]]:
    """The parts of each seat that has scores of its own; under None the rest."""
    by_seat: dict[str | None, list[Part]] = {}
    for part in share:
        turns: dict[str | None, list[DispatchedSamplingTask]] = {}
        for dispatch in part.dispatches:
            seat = seat_of(dispatch.thread)
            turns.setdefault(seat if _score_of(part, seat) is not None else None, []).append(dispatch)
        for name, taken in (turns or {None: []}).items():
            own = None if name is None else _score_of(part, name)
            by_seat.setdefault(name, []).append(Part(part.record, part.score if own is None else own, taken))
    return by_seat


def _score_of(part: Part, seat: str) -> float | None:
    seated = part.record.actors.get(seat)
    return None if seated is None else seated.score


def _together(read: Sequence[ScoredEpisode], settled: Sequence[Settlement]) -> Settlement:
    """One settlement by record: kept where a seat's turns are kept; the turns of its other seats are then context."""
    advantages: dict[str, dict[str, float]] = {}
    shaping: dict[str, list[float]] = {}
    reasons: dict[str, list[str]] = {}
    for one in settled:
        for episode, added in zip(one.verdict.kept, one.verdict.shaping, strict=True):
            advantages.setdefault(episode.record, {}).update(one.advantages[episode.record])
            shaping.setdefault(episode.record, []).append(added)
        for record, reason in one.verdict.dropped.items():
            reasons.setdefault(record, []).append(reason)
    trainable = [episode for episode in read if episode.record in advantages]
    dropped = {e.record: _one_of(reasons.get(e.record, [])) for e in read if e.record not in advantages}
    refusals = [one.verdict.refusal for one in settled if one.verdict.refusal is not None]
    verdict = RuleResult(
        trainable,
        dropped,
        [math.fsum(shaping[e.record]) / len(shaping[e.record]) for e in trainable],
        None if trainable else _one_of(refusals),
    )
    whole = {
        e.record: {turn.dispatch: advantages[e.record].get(turn.dispatch, 0.0) for turn in e.turns} for e in trainable
    }
    context = frozenset(d for record, of_turns in whole.items() for d in of_turns if d not in advantages[record])
    return Settlement(verdict, whole, frozenset().union(*(one.masked for one in settled)), context)


def _one_of(reasons: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(reasons)) or NO_TURNS
