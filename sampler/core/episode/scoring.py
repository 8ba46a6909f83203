"""When an episode's score is due: at its end, or later, as feedback. Guide: docs/bring/any_agent.md.

Held-out episodes never wait: a round of evaluation ends with its episodes.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from sampler.core.api_models import Agents
from sampler.core.episode.log import EpisodeLog
from sampler.core.scorers import Score, ScoringRequest, score_answer
from sampler.core.scorers.registry import is_group_scorer, require_scorer
from sampler.core.scorers.scored_text import ScoredText
from sampler.core.scorers.weighted import combined, judge_metrics, metrics_of
from sampler.core.settings.core_config import CoreConfig
from shared.documents import Task
from shared.documents.scoring import WeightedScorer
from shared.errors import ConfigError
from shared.names import TRAIN_SPLIT


class WithAgents(Protocol):
    """What is read of a process's resources."""

    @property
    def agents(self) -> Agents: ...


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


class ScoreComesLater(Exception):
    """Raise it in `evaluate_record`: the episode waits `deadline_s` for feedback (None: the setting's), and then has the score
    `otherwise`, or is set aside (None)."""

    def __init__(self, deadline_s: float | None = None, otherwise: Score | None = None) -> None:
        super().__init__("the score comes later")
        self.deadline_s, self.otherwise = deadline_s, otherwise


async def score_text(sampler: PlayedEpisode, scored: ScoredText, answer: str | None) -> Score:
    """Apply the task's scorers to a reply, or a text that an agent returned. Raises ScoreComesLater where only feedback
    counts."""
    sampler.episode.answer, sampler.episode.seeks_answer = answer, True
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
