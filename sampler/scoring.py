"""When an episode's score is due: at its end, or later, as feedback. Guide: docs/any_agent.md.

Held-out episodes never wait: a round of evaluation ends with its episodes.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from sampler.config import SamplerConfig
from sampler.episode_log import EpisodeLog
from sampler.resources import Resources
from sampler.scorers import Score, ScoringRequest, score_answer
from shared.documents import Task
from shared.names import TRAIN_SPLIT


class PlayedEpisode(Protocol):
    """What is read of a sampler to score its episode."""

    config: SamplerConfig
    resources: Resources
    episode: EpisodeLog

    @property
    def task(self) -> Task: ...

    @property
    def scorer_name(self) -> str: ...

    @property
    def conversation(self) -> tuple[Mapping[str, Any], ...]: ...


class ScoreComesLater(Exception):
    """Raise it in `evaluate_record`: the episode waits `deadline_s` for feedback (None: the setting's), and then has the score
    `otherwise`, or is set aside (None)."""

    def __init__(self, deadline_s: float | None = None, otherwise: Score | None = None) -> None:
        super().__init__("the score comes later")
        self.deadline_s, self.otherwise = deadline_s, otherwise


async def score_text(sampler: PlayedEpisode, text: str, answer: str | None) -> Score:
    """Apply the task's scorer to a reply, or a text that an agent returned. Raises ScoreComesLater where only feedback counts."""
    sampler.episode.answer = answer
    if needs_no_scorer(sampler):
        raise ScoreComesLater
    payload, judge = sampler.task.payload, sampler.resources.agents.judge
    request = ScoringRequest(
        answer=answer,
        accepted=payload.accepted,
        query=payload.query,
        reply=text,
        payload=payload.model_dump(mode="json"),
        messages=sampler.conversation,
        judge=judge,
    )
    return await score_answer(sampler.scorer_name, request)


def deadline_of(sampler: PlayedEpisode) -> float | None:
    """How long the episode waits for feedback, by its task or the settings; None: not at all."""
    if sampler.task.split != TRAIN_SPLIT:
        return None
    own = sampler.task.payload.feedback_deadline_s
    return (sampler.config.feedback_deadline_s if own is None else own) or None


def needs_no_scorer(sampler: PlayedEpisode) -> bool:
    """Whether nothing but feedback scores the episode."""
    return deadline_of(sampler) is not None and sampler.config.feedback_missing == "abandon"
