"""One claim, played to one of its ends. Every end is written once, fenced by the claim's attempt.

run ─▶ evaluate ─▶ record scored ─▶ slot scored                         the episode's own end
  ├── plumbing: engine, tools, agents, scorer, time, settings ─▶ record failed ─▶ slot open again, later (or failed for good)
  ├── cancelled (draining) ─▶ record abandoned ─▶ slot open again, at once
  └── the lease was lost ─▶ record abandoned; another worker has the slot
"""

import asyncio
import logging
import math
from typing import Any

from sampler.config import SamplerConfig
from sampler.errors import AgentFailed, EngineError, ScorerFailed, ToolFailure
from sampler.sampler import AsyncSampler
from sampler.scorers import Score, require_scorer
from shared.errors import ConfigError, IllegalMove, LeaseLost
from shared.states import DispatchStatus, RecordStatus, Termination

log = logging.getLogger(__name__)

CLEANUP_S = 10.0
MAX_RETRY_DELAY_S = 300.0


class WrongVersion(EngineError):
    """An evaluation episode was sampled by other weights than those it is meant to judge."""


async def play(sampler: AsyncSampler) -> float | None:
    """Play, score, finish. Returns the score, None when the episode ended without one. Errors of our own rise."""
    try:
        await sampler.resources.store.records.start(sampler.claim, sampler.resources.worker)
        async with asyncio.timeout(sampler.config.episode_timeout_s):
            termination, score = await _play_and_score(sampler)
        await _finish(sampler, termination, score)
        return score.value
    except LeaseLost as exc:
        await _abandon(sampler, str(exc))
    except (EngineError, ToolFailure, AgentFailed, ScorerFailed, ConfigError, TimeoutError) as exc:
        await _fail(sampler, exc)
    except BaseException as exc:  # cancelled, or a bug: give the slot back, then let it rise
        await asyncio.shield(asyncio.wait_for(_release(sampler, exc), CLEANUP_S))
        raise
    return None


async def _play_and_score(sampler: AsyncSampler) -> tuple[Termination, Score]:
    if type(sampler).evaluate_record is AsyncSampler.evaluate_record:
        require_scorer(sampler.scorer_name, sampler.resources.agents.judge)  # before anything is sampled
    termination = await sampler.run()
    if not isinstance(termination, Termination):
        raise TypeError(f"{type(sampler).__qualname__}.run returned {termination!r}; expected a Termination")
    await sampler.finish_turn()
    wanted = sampler.task.at_version
    if wanted is not None and sampler.episode.versions - {wanted}:
        raise WrongVersion(f"sampled by versions {sorted(sampler.episode.versions)}; expected {wanted} alone")
    score = await sampler.evaluate_record()
    if not isinstance(score, Score):
        raise TypeError(
            f"{type(sampler).__qualname__}.evaluate_record returned {score!r}; expected Score(value=<number>)"
        )
    if not all(map(math.isfinite, (score.value, *score.others.values()))):
        raise ScorerFailed(f"evaluate_record returned {score}; expected finite numbers")
    if strangers := score.others.keys() - sampler.resources.others:
        raise ScorerFailed(f"evaluate_record scored policies {sorted(strangers)}, which are not in other_policies")
    return termination, score


async def _finish(sampler: AsyncSampler, termination: Termination, score: Score) -> None:
    values = {
        **sampler.episode.values(),
        "termination": termination.value,
        "score": score.value,
        "policy_scores": dict(score.others),
        "reward_details": dict(score.details),
    }
    store = sampler.resources.store
    await store.records.set_turn_scores(sampler.episode.turn_scores)
    await store.records.move(sampler.claim.record_id, RecordStatus.SCORED, values)
    await store.tasks.finish_slot(sampler.claim, score.value)


async def _fail(sampler: AsyncSampler, exc: Exception) -> None:
    cause, error = _cause(exc), f"{type(exc).__name__}: {exc}"
    claim, config = sampler.claim, sampler.config
    is_ours = (
        cause is Termination.MISCONFIGURED
    )  # nothing will mend it but somebody; a sampler that knows the scorer may come
    log.log(logging.ERROR if is_ours else logging.WARNING, "episode failed record=%s %s", claim.record_id, error)
    await sampler.finish_turn()
    values = {**sampler.episode.values(), "termination": cause.value, "error": error}
    await sampler.resources.store.records.move(claim.record_id, RecordStatus.FAILED, values)
    delay_s = retry_delay_s(config, claim.task.slots[claim.traj_id].failures)
    try:
        await sampler.resources.store.tasks.retry_slot(claim, error, delay_s=delay_s, max_failures=config.max_failures)
    except LeaseLost:
        log.info("lease lost record=%s", claim.record_id)


async def _release(sampler: AsyncSampler, exc: BaseException) -> None:
    await _abandon(sampler, f"{type(exc).__name__}: {exc}")
    try:
        await sampler.resources.store.tasks.release_slot(sampler.claim)
    except LeaseLost:
        log.info("lease lost record=%s", sampler.claim.record_id)


async def _abandon(sampler: AsyncSampler, error: str) -> None:
    values: dict[str, Any] = {
        **sampler.episode.values(),
        "termination": Termination.CANCELLED.value,
        "error": error,
    }
    await sampler.finish_turn(DispatchStatus.CANCELLED)
    try:
        await sampler.resources.store.records.move(sampler.claim.record_id, RecordStatus.ABANDONED, values)
    except IllegalMove as exc:
        log.info("nothing to abandon: %s", exc)  # cancelled before the record was written, or after its end


def _cause(exc: Exception) -> Termination:
    if isinstance(exc, ToolFailure):
        return Termination.TOOL_FAILURE
    if isinstance(exc, AgentFailed):
        return Termination.AGENT_FAILURE
    if isinstance(exc, ScorerFailed):
        return Termination.SCORER_FAILURE
    if isinstance(exc, ConfigError):
        return Termination.MISCONFIGURED
    return Termination.TIME_LIMIT if isinstance(exc, TimeoutError) else Termination.ENGINE_FAILURE


def retry_delay_s(config: SamplerConfig, failures: int) -> float:
    """Doubled with every failure of the slot."""
    return float(min(MAX_RETRY_DELAY_S, config.retry_delay_s * 2.0**failures))
