"""What becomes of an episode's score at its end: it counts, or the episode waits for feedback. Guide: docs/bring/any_agent.md.

evaluate_record ─▶ Score ─┬─ no deadline, or `is_final` ─▶ the score
                          └─ feedback_deadline_s ─▶ DeferredScore: feedback, else this score (feedback_missing: scorer)
            └─▶ raises ScoreComesLater ─▶ DeferredScore
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sampler.core.episode.sampler import AsyncSampler
from sampler.core.episode.scoring import ScoreComesLater, deadline_of
from sampler.core.episode.user_calls import call_user_code
from sampler.core.errors import ScorerFailed
from sampler.core.scorers import Score, is_finite_number
from sampler.core.scorers.registry import with_floats
from shared.documents.feedback import MAX_DEADLINE_S
from shared.errors import ConfigError, OwnCodeFailed
from shared.names import TRAIN_SPLIT
from shared.user_code.frames import definition_of


@dataclass(frozen=True, slots=True)
class DeferredScore:
    """The episode waits for feedback; without any it gets `otherwise`, or fails (None)."""

    deadline_s: float
    otherwise: Score | None


async def evaluate(sampler: AsyncSampler) -> Score | DeferredScore:
    """Call the sampler's `evaluate_record`, and check what it says."""
    deadline_s = deadline_of(sampler)
    try:
        score = _checked(sampler, await call_user_code(sampler.evaluate_record, Score, "Score(value=<number>)"))
    except ScoreComesLater as later:
        return _awaited(sampler, later, deadline_s)
    if deadline_s is None or score.is_final:
        return score
    return DeferredScore(deadline_s, None if sampler.config.scoring.feedback_missing == "abandon" else score)


def _awaited(sampler: AsyncSampler, later: ScoreComesLater, set_deadline_s: float | None) -> Score | DeferredScore:
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


def _checked(sampler: AsyncSampler, score: Score) -> Score:
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
