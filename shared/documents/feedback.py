"""A score that comes after its episode's end, and the score that counts without one. Guide: docs/bring/any_agent.md."""

from datetime import datetime
from typing import Any

from pydantic import Field

from shared.documents.base import Document
from shared.scores import LARGEST_SCORE

MAX_COMMENT_CHARS = 2_000  # a task's document stores those of all its episodes
MAX_SOURCE_CHARS = 200
MAX_DEADLINE_S = 3e8  # ten years


class Feedback(Document):
    """One score that came later. `turn` None: the episode's, which ends its waiting; else a part of it that this turn earned."""

    turn: int | None = Field(None, ge=0, strict=True)
    score: float = Field(strict=True, allow_inf_nan=False, ge=-LARGEST_SCORE, le=LARGEST_SCORE)
    comment: str | None = Field(None, max_length=MAX_COMMENT_CHARS)
    source: str | None = Field(None, max_length=MAX_SOURCE_CHARS)  # who gave it: a user, a program
    given_at: datetime | None = None  # set by the server


class ScoreWithoutFeedback(Document):
    """What `evaluate_record` returned at the episode's end: counts if no feedback comes before the deadline."""

    score: float
    policy_scores: dict[str, float] = {}
    reward_details: dict[str, Any] = {}
