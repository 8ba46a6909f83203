"""The score of an episode at its end: it counts, or the episode waits for feedback. Guide: docs/bring/any_agent.md.

evaluate_record ─▶ score_text ─▶ Score ─┬─ no deadline, or `is_final` ─▶ the score
                                        └─ feedback_deadline_s ─▶ DeferredScore: feedback, else this score
            └─▶ raises ScoreComesLater ───▶ DeferredScore

Held-out episodes never wait: a round of evaluation ends with its episodes.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sampler.core.api_models import Agents
from sampler.core.episode.log import EpisodeLog
from sampler.core.episode.user_calls import call_user_code
from sampler.core.errors import ScorerFailed
from sampler.core.scorers import Score, ScoringRequest, is_finite_number, score_answer, scorer_needs_answer
from sampler.core.scorers.registry import is_group_scorer, require_scorer, with_floats
from sampler.core.scorers.scored_text import ScoredText
from sampler.core.scorers.weighted import combined, judge_metrics, metrics_of
from sampler.core.settings.core_config import CoreConfig
from shared.documents import Task
from shared.documents.feedback import MAX_DEADLINE_S
from shared.documents.scoring import WeightedScorer
from shared.errors import ConfigError, OwnCodeFailed
from shared.names import TRAIN_SPLIT
from shared.user_code.frames import definition_of


class WithAgents(Protocol):
    """What is read of a process's resources."""

    @property
    def agents(self) -> Agents: ...


class WithOthers(WithAgents, Protocol):
    """`others`: the policies that take turns besides the task's own."""

    @property
    def others(self) -> Mapping[str, Any]: ...


class PlayedEpisode(Protocol):
    """What is read of a sampler to score its episode."""

    config: CoreConfig
    episode: EpisodeLog

    @property
    def resources(self) -> WithAgents: ...

    @property
    def task(self) -> Task: ...

    @property
    def scorers(self) -> Sequence[WeightedScorer]: ...

    @property
    def conversation(self) -> tuple[Mapping[str, Any], ...]: ...


class EvaluatedEpisode(PlayedEpisode, Protocol):
    """What says its score itself."""

    @property
    def resources(self) -> WithOthers: ...

    async def evaluate_record(self) -> Score: ...


class ScoreComesLater(Exception):
    """Raise it in `evaluate_record`: the episode waits `deadline_s` for feedback (None: the setting's), and then has the score
    `otherwise`, or is set aside (None)."""

    def __init__(self, deadline_s: float | None = None, otherwise: Score | None = None) -> None:
        super().__init__("the score comes later")
        self.deadline_s, self.otherwise = deadline_s, otherwise


@dataclass(frozen=True, slots=True)
class DeferredScore:
    """The episode waits for feedback; without any it gets `otherwise`, or fails (None)."""

    deadline_s: float
    otherwise: Score | None


async def evaluate(sampler: EvaluatedEpisode) -> Score | DeferredScore:
    """Call the sampler's `evaluate_record`, and check what it says."""
    deadline_s = deadline_of(sampler)
    try:
        score = _checked(sampler, await call_user_code(sampler.evaluate_record, Score, "Score(value=<number>)"))
    except ScoreComesLater as later:
        return _awaited(sampler, later, deadline_s)
    if deadline_s is None or score.is_final:
        return score
    return DeferredScore(deadline_s, None if sampler.config.scoring.feedback_missing == "abandon" else score)


def _awaited(sampler: EvaluatedEpisode, later: ScoreComesLater, set_deadline_s: float | None) -> Score | DeferredScore:
    otherwise = None if later.otherwise is None else _checked(sampler, later.otherwise)
    if sampler.task.split != TRAIN_SPLIT:
        if otherwise is None:
            raise ConfigError(
                f"evaluate_record said that the score comes later, of a task of split {sampler.task.split}; expected a "
                "Score, or ScoreComesLater(otherwise=Score(…)): only training waits for feedback"
            )
        return otherwise
    deadline_s = set_deadline_s if later.deadline_s is None else later.deadline_s
    if deadline_s is None:
        raise ConfigError(
            "evaluate_record said that the score comes later, without a deadline; expected ScoreComesLater(deadline_s=…), "
            "or the setting feedback_deadline_s"
        )
    if not is_finite_number(deadline_s) or not 0 < deadline_s <= MAX_DEADLINE_S:
        where = definition_of(sampler.evaluate_record)
        raise OwnCodeFailed(
            f"ScoreComesLater: deadline_s is {deadline_s!r}; expected up to {MAX_DEADLINE_S:g} s{where}"
        )
    return DeferredScore(float(deadline_s), otherwise)


def _checked(sampler: EvaluatedEpisode, score: Score) -> Score:
    where = definition_of(sampler.evaluate_record)
    if not isinstance(score, Score):
        raise OwnCodeFailed(f"ScoreComesLater: otherwise is {score!r}; expected a Score{where}")
    if not all(isinstance(given, Mapping) for given in (score.details, score.others, score.actors)):
        raise OwnCodeFailed(f"evaluate_record returned {score}; expected details, others and actors to be dicts{where}")
    try:
        score = with_floats(score)
    except ValueError as exc:
        raise ScorerFailed(f"evaluate_record returned the score {exc}{where}") from exc
    unknown = score.others.keys() - sampler.resources.others
    if unknown:
        raise ScorerFailed(f"evaluate_record scored policies {sorted(unknown)}, which are not in other_policies")
    unknown = score.actors.keys() - sampler.episode.actors
    if unknown:
        seats = ", ".join(sampler.episode.actors) or "none"
        raise ScorerFailed(f"evaluate_record scored seats {sorted(unknown)}; expected some of this slot's: {seats}")
    return score


async def score_text(sampler: PlayedEpisode, scored: ScoredText, answer: str | None) -> Score:
    """Apply the task's scorers to a reply, or a text that an agent returned. Raises ScoreComesLater where only feedback
    counts."""
    sampler.episode.answer = answer
    sampler.episode.seeks_answer = any(scorer_needs_answer(scorer.name) for scorer in sampler.scorers)
    if needs_no_scorer(sampler):
        raise ScoreComesLater
    payload, judge = sampler.task.payload, sampler.resources.agents.judge
    request = ScoringRequest(
        answer=answer,
        accepted=payload.accepted,
        query=payload.query,
        reply=scored.text,
        in_reasoning=scored.in_reasoning,
        payload=payload.model_dump(mode="json"),
        messages=sampler.conversation,
        tool_calls=tuple(call for calls in sampler.episode.tool_calls.values() for call in calls),
        utterances=tuple(sampler.episode.utterances),
        judge=judge,
    )
    own, of_group = _split(sampler)
    scores = await _all(own, request)
    if len(sampler.scorers) == 1 and own and own[0].weight == 1:
        sampler.episode.metrics |= judge_metrics(scores)
        return scores[0]
    sampler.episode.metrics |= metrics_of(own, scores)
    if not own:
        names = " + ".join(one.name for one in of_group)
        return Score(0.0, {"scorer": names, "reason": "scored with its group"}, group_scorers=of_group)
    return replace(combined(own, scores), group_scorers=of_group)


def require_scorers(sampler: PlayedEpisode) -> None:
    """Raises ConfigError for a scorer that is not there, and for a held-out episode without one of its own."""
    for one in sampler.scorers:
        require_scorer(one.name, sampler.resources.agents.judge)
    if not _split(sampler)[0] and sampler.task.split != TRAIN_SPLIT:
        raise ConfigError(
            f"{sampler.scorers[0].name} scores groups of training episodes; a task of split {sampler.task.split} needs a scorer "
            "of its own, too"
        )


def _split(sampler: PlayedEpisode) -> tuple[tuple[WeightedScorer, ...], tuple[WeightedScorer, ...]]:
    """The scorers of the episode alone, and those that score it with its group, which a held-out one is not."""
    own = tuple(one for one in sampler.scorers if not is_group_scorer(one.name))
    of_group = tuple(one for one in sampler.scorers if is_group_scorer(one.name))
    return own, of_group if sampler.task.split == TRAIN_SPLIT else ()


async def _all(scorers: Sequence[WeightedScorer], request: ScoringRequest) -> list[Score]:
    """Each scorer's score. Raises the first one's error, in their order; then there is no score."""
    results = await asyncio.gather(*(score_answer(one.name, request) for one in scorers), return_exceptions=True)
    scores: list[Score] = []
    for one in results:
        if isinstance(one, BaseException):
            raise one
        scores.append(one)
    return scores


def deadline_of(sampler: PlayedEpisode) -> float | None:
    """How long the episode waits for feedback, by its task or the settings; None: not at all."""
    if sampler.task.split != TRAIN_SPLIT:
        return None
    own = sampler.task.payload.feedback_deadline_s
    return (sampler.config.scoring.feedback_deadline_s if own is None else own) or None


def needs_no_scorer(sampler: PlayedEpisode) -> bool:
    """Whether nothing but feedback scores the episode."""
    return deadline_of(sampler) is not None and sampler.config.scoring.feedback_missing == "abandon"
