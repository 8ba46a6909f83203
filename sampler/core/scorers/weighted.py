"""Several scorers of one episode: which they are, and the sum of their weighted values.

scorers of the task ─▶ its scorer ─▶ default_scorers ─▶ default_scorer        the first of these that is given
"""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sampler.core.api_models import Judge
from sampler.core.errors import ScorerFailed
from sampler.core.scorers.details import DISAGREEMENT, VOTES
from sampler.core.scorers.registry import Score, default_scorer, is_finite_number
from shared.documents import TaskPayload
from shared.documents.scoring import WeightedScorer
from shared.names import LONGEST
from shared.scores import EXPECTED, usable_score

NOT_IN_METRICS = re.compile(r"[^A-Za-z0-9_-]")
HASH_CHARS = 6  # of a name that a metric cannot hold


def scorers_of(
    payload: TaskPayload, configured: str | None, several: Sequence[WeightedScorer], judge: Judge | None
) -> tuple[WeightedScorer, ...]:
    """`configured`, `several`: the settings `default_scorer` and `default_scorers`."""
    if payload.scorers:
        return tuple(payload.scorers)
    if payload.scorer is None and several:
        return tuple(several)
    return (WeightedScorer(name=payload.scorer or default_scorer(configured, judge)),)


def combined(scorers: Sequence[WeightedScorer], scores: Sequence[Score]) -> Score:
    """The sum of weight times value, also for each other policy and each seat that one of them scores; the details of each
    under its name."""
    pairs = list(zip(scorers, scores, strict=True))
    return Score(
        weighted_sum([(one.weight, score.value) for one, score in pairs]),
        {
            "scorer": " + ".join(_term(one) for one in scorers),
            "reason": ", ".join(f"{one.name} {score.value:g}" for one, score in pairs),
            "components": {
                one.name: {"value": score.value, "weight": one.weight, **score.details} for one, score in pairs
            },
        },
        _summed([(one.weight, score.value, score.others) for one, score in pairs]),
        any(score.is_final for score in scores),
        _summed([(one.weight, score.value, score.actors) for one, score in pairs]),
    )


def _summed(parts: Sequence[tuple[float, float, Mapping[str, float]]]) -> dict[str, float]:
    """By name: the sum of weight times value; a scorer that does not name one gives it the episode's value."""
    names = sorted({name for _, _, of_part in parts for name in of_part})
    return {name: weighted_sum([(weight, own.get(name, value)) for weight, value, own in parts]) for name in names}


def weighted_sum(parts: Sequence[tuple[float, float]]) -> float:
    """The sum of weight times value. Raises ScorerFailed if the trainer cannot use it."""
    try:
        return usable_score(math.fsum(weight * value for weight, value in parts))
    except (OverflowError, ValueError) as exc:
        values = [value for _, value in parts]
        raise ScorerFailed(f"the sum of the weighted scores {values} is no usable score; expected {EXPECTED}") from exc


def metrics_of(scorers: Sequence[WeightedScorer], scores: Sequence[Score]) -> dict[str, float]:
    """`score_NAME` of each, and what the judges took."""
    named = {metric_name(one.name): float(score.value) for one, score in zip(scorers, scores, strict=True)}
    return named | judge_metrics(scores)


def judge_metrics(scores: Sequence[Score]) -> dict[str, float]:
    details = [one for score in scores for one in (score.details, *_votes(score))]
    uses = [use for one in details if isinstance(use := one.get("judged_by"), dict)]
    apart = [_number(value) for score in scores if is_finite_number(value := score.details.get(DISAGREEMENT))]
    tokens = math.fsum(_number(use.get(name)) for use in uses for name in ("prompt_tokens", "completion_tokens"))
    seconds = math.fsum(_number(use.get("duration_s")) for use in uses)
    spread = {DISAGREEMENT: math.fsum(apart) / len(apart)} if apart else {}
    return {"judge_tokens": tokens, "judge_s": seconds, **spread} if uses else {}


def _votes(score: Score) -> list[Mapping[str, Any]]:
    """A scorer of one's own may call anything so."""
    votes = score.details.get(VOTES)
    return [one for one in votes if isinstance(one, Mapping)] if isinstance(votes, list | tuple) else []


def metric_name(scorer: str) -> str:
    """Two scorers never share one: what a metric's name cannot hold is told apart by a hash of the scorer's name."""
    name = field_name(scorer)
    if name == scorer:
        return f"score_{name}"
    digest = hashlib.sha256(scorer.encode()).hexdigest()[:HASH_CHARS]
    return f"score_{name[: LONGEST - HASH_CHARS - 1]}-{digest}"


def field_name(text: str) -> str:
    """As a metric may be called, and a field of a document."""
    return NOT_IN_METRICS.sub("_", text)[:LONGEST]


def _term(one: WeightedScorer) -> str:
    return one.name if one.weight == 1 else f"{one.weight:g} * {one.name}"


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
