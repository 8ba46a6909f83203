"""Plays one claim to one of its outcomes. Each outcome is written once, fenced by the claim's attempt.

run ─▶ evaluate ─▶ record scored ─▶ slot scored                         the episode ended normally
  ├── its score comes later ─▶ record completed ─▶ slot waits, without a lease: feedback or the deadline ends it
  ├── infrastructure: engine, tools, agents, scorer, time,
  │   a document that does not fit into MongoDB ─▶ record failed ─▶ slot open again, later (or failed for good)
  ├── a setting or the task is wrong, or an engine refuses the request itself ─▶ record failed ─▶ slot failed for good, at once
  ├── a tool server is busy or away, an environment is full,
  │   or an agent's harness stopped ─▶ record abandoned ─▶ slot open again, at once, no failure
  ├── no engine serves a pinned actor's version ─▶ no record, or abandoned ─▶ slot open again, later, no failure
  │   (in an evaluation of a version, whose engine waits for it: a failure of infrastructure, as above)
  ├── cancelled (draining) ─▶ record abandoned ─▶ slot open again, at once
  ├── the lease was lost ─▶ record abandoned; another worker has the slot, and may have ended its group already
  └── anything else: a bug, also a user's own (`OwnCodeFailed`) ─▶ record failed, with the traceback ─▶ slot open again, later
      (`sampler/core/episode/unforeseen.py`)

Only a cancellation and a database that is away leave `play`: what one episode meets ends no other.
A lost lease ends only this episode. It appears as LeaseLost, or as IllegalMove if settlement has already closed the record.
"""

import asyncio
import logging
from typing import Any

from sampler.core.episode.sampler import AsyncSampler
from sampler.core.episode.scoring import DeferredScore, evaluate, needs_no_scorer, require_scorers
from sampler.core.episode.unforeseen import MAX_SLOT_ERROR_CHARS, fail_unforeseen
from sampler.core.episode.user_calls import call_user_code
from sampler.core.errors import (
    AgentCrashed,
    AgentFailed,
    AttemptReleased,
    EngineError,
    EngineRefused,
    EnvironmentBusy,
    EnvironmentFailed,
    EnvironmentWrong,
    KeyRefused,
    ScorerFailed,
    ToolFailure,
    ToolNotOffered,
    ToolServerUnavailable,
    VersionUnavailable,
)
from sampler.core.retry_delay import retry_delay_s
from sampler.core.scorers import Score
from shared.documents.actors import model_of, trains
from shared.documents.states import DispatchStatus, RecordStatus, Termination
from shared.errors import ConfigError, DoesNotFit, IllegalMove, LeaseLost, TandemError
from shared.held_values import held
from shared.outside_text import clipped, error_text
from shared.unforeseen import is_of_the_process
from shared.user_code.frames import told

log = logging.getLogger(__name__)

CLEANUP_S = 10.0
AWAY_S = 15.0  # until a slot whose actor's version no engine serves is claimed again
OF_A_PERSON = (  # shown by the launcher: a person has to act
    *(Termination.MISCONFIGURED, Termination.SCORER_FAILURE, Termination.AGENT_FAILURE, Termination.NOT_STORABLE),
)
BLAMELESS = {  # how such an episode ends, and when its slot is free again
    ToolServerUnavailable: (Termination.TOOL_SERVER_AWAY, 0.0),
    EnvironmentBusy: (Termination.ENVIRONMENT_BUSY, 0.0),
    VersionUnavailable: (Termination.VERSION_AWAY, AWAY_S),
    AttemptReleased: (Termination.CANCELLED, 0.0),
}
LOST = (LeaseLost, IllegalMove)


class WrongVersion(EngineError):
    """An evaluation episode was sampled by other weights than the version it evaluates."""


async def play(sampler: AsyncSampler) -> float | None:
    """Play, score, finish. Returns the score, or None if the episode ended without one, or waits for it. A bug fails its slot."""
    try:
        return await _played(sampler)
    except BaseException as exc:  # also SystemExit and panics of foreign code; the process's own is raised again
        if is_of_the_process(exc):
            raise
        await fail_unforeseen(sampler, exc)
    return None


async def _played(sampler: AsyncSampler) -> float | None:
    try:
        await _start(sampler)
        async with sampler._clock.running(sampler.config.queue.episode_timeout_s):
            termination, score = await _play_and_score(sampler)
        if isinstance(score, DeferredScore):
            await _wait(sampler, termination, score)
            return None
        await _finish(sampler, termination, score)
        return score.value
    except LOST as exc:
        log.warning("lease lost record=%s %s", sampler.claim.record_id, exc)
        await _abandon(sampler, str(exc))
    except (ToolServerUnavailable, EnvironmentBusy, VersionUnavailable, AttemptReleased) as exc:
        await _interrupted(sampler, exc)
    except (EngineError, ToolFailure, EnvironmentFailed, AgentFailed, AgentCrashed, ScorerFailed) as exc:
        await _fail(sampler, exc)
    except (ConfigError, DoesNotFit) as exc:
        await _fail(sampler, exc)
    except TimeoutError as exc:
        return await _time_is_over(sampler, exc)
    except BaseException as exc:  # raised again in any case: `play` counts a bug
        if is_of_the_process(exc) and not (sampler._goes_on_elsewhere and isinstance(exc, asyncio.CancelledError)):
            await asyncio.shield(_release_in_time(sampler, exc))  # else another process scores it, from its documents
        raise
    return None


async def _start(sampler: AsyncSampler) -> None:
    """Raises VersionUnavailable; before there is a record, but for an episode that is awaited."""
    if not _is_awaited(sampler):
        await sampler.require_engines()
    if not sampler._goes_on_elsewhere:  # else its record is there since it was claimed
        await sampler.resources.store.records.start(sampler.claim, sampler.resources.worker)
    if _is_awaited(sampler):
        await sampler.require_engines()


def _is_awaited(sampler: AsyncSampler) -> bool:
    """An engine serves the version that the task evaluates until the evaluation has ended: it does not wait without end."""
    return sampler.task.at_version is not None


async def _interrupted(sampler: AsyncSampler, exc: TandemError) -> None:
    """Release the slot without blame."""
    if isinstance(exc, VersionUnavailable) and _is_awaited(sampler):
        await _fail(sampler, exc)
        return
    if not isinstance(exc, AttemptReleased):
        log.warning("slot released record=%s %s", sampler.claim.record_id, exc)
    await _release(sampler, exc, *BLAMELESS[type(exc)])


async def _play_and_score(sampler: AsyncSampler) -> tuple[Termination, Score | DeferredScore]:
    if type(sampler).evaluate_record is AsyncSampler.evaluate_record and not needs_no_scorer(sampler):
        require_scorers(sampler)  # before anything is sampled
    if sampler.task.payload.fork is not None:
        sampler.require_forks()
    termination = await call_user_code(sampler.run, Termination, "a Termination")
    await sampler.finish_turn()
    version = sampler.task.at_version
    if version is not None and sampler.episode.versions - {version}:
        raise WrongVersion(f"sampled by versions {sorted(sampler.episode.versions)}; expected {version} alone")
    score = await evaluate(sampler)
    await sampler.finish_turn(last=True)
    return termination, score


async def _finish(sampler: AsyncSampler, termination: Termination, score: Score) -> None:
    sampler.episode.score_seats(score.actors)
    values = {**sampler.episode.values(), "termination": termination.value, **_values(sampler, score)}
    store = sampler.resources.store
    await store.records.set_turn_scores(sampler.episode.turn_scores)
    value = float(score.value)
    if not await store.records.move(sampler.claim.record_id, RecordStatus.SCORED, values):
        record = await store.records.get(sampler.claim.record_id)  # another gateway process ended the same attempt
        value = value if record is None or record.score is None else record.score
    is_last = await store.tasks.finish_slot(sampler.claim, value, score.group_scorers)
    sampler.episode.leaves_group_open = not is_last
    sampler.episode.awaits_group = bool(score.group_scorers)
    sampler.episode.status = RecordStatus.SCORED
    sampler.resources.model_acts.ended(sampler.episode.acts)


async def _time_is_over(sampler: AsyncSampler, exc: TimeoutError) -> float | None:
    """A score that was final before counts."""
    score = sampler.episode.final_score
    if score is None:
        await _fail(sampler, exc)
        return None
    try:
        await sampler.finish_turn(last=True)
        details = {"scorer": "agent", "reason": "posted before the episode's time ended"}
        await _finish(sampler, Termination.TIME_LIMIT, Score(score, details, is_final=True))
    except LOST as lost:
        await _abandon(sampler, str(lost))
        return None
    return score


async def _wait(sampler: AsyncSampler, termination: Termination, awaited: DeferredScore) -> None:
    """The episode is played, and its score comes later."""
    otherwise, claim = awaited.otherwise, sampler.claim
    without = None if otherwise is None else _values(sampler, otherwise)
    values = {**sampler.episode.values(), "termination": termination.value, "without_feedback": without}
    store = sampler.resources.store
    await store.records.set_turn_scores(sampler.episode.turn_scores)
    await store.records.move(claim.record_id, RecordStatus.COMPLETED, values)
    score_without = None if otherwise is None else float(otherwise.value)
    of_group = () if otherwise is None else otherwise.group_scorers
    await store.tasks.await_feedback(claim, awaited.deadline_s, score_without=score_without, group_scorers=of_group)
    sampler.episode.status = RecordStatus.COMPLETED
    log.info("waits for feedback record=%s deadline_s=%g", claim.record_id, awaited.deadline_s)


def _values(sampler: AsyncSampler, score: Score) -> dict[str, Any]:
    return {
        "score": float(score.value),
        "policy_scores": _scores_of_others(sampler, score),
        "reward_details": _details(sampler, score),
    }


def _scores_of_others(sampler: AsyncSampler, score: Score) -> dict[str, float]:
    """By policy. Weights that only sit here, such as main@40, have the mean of their seats, not the episode's score."""
    earned: dict[str, list[float]] = {}
    for name, value in score.actors.items():
        label = sampler.episode.actors[name].policy
        if not trains(label) and model_of(label) is None:
            earned.setdefault(label, []).append(float(value))
    seated = {label: sum(values) / len(values) for label, values in earned.items()}
    return seated | {policy: float(value) for policy, value in score.others.items()}


def _details(sampler: AsyncSampler, score: Score) -> dict[str, Any]:
    """The score's details, as a document can hold them. A user's own `evaluate_record` that names no scorer is itself named as
    the scorer."""
    own = type(sampler).evaluate_record
    details: dict[str, Any] = held({"scorer": f"{own.__module__}:{own.__qualname__}", **score.details})
    return details


async def _fail(sampler: AsyncSampler, exc: Exception) -> None:
    cause, error = _cause(exc), told(exc, type(sampler)) if isinstance(exc, TimeoutError) else error_text(exc)
    claim, config = sampler.claim, sampler.config
    log.log(
        logging.ERROR if cause in OF_A_PERSON or isinstance(exc, EnvironmentWrong) else logging.WARNING,
        "episode failed record=%s %s",
        claim.record_id,
        error,
    )
    await sampler.finish_turn(failed=True)
    delay_s = retry_delay_s(config, claim.task.slots[claim.traj_id].failures)
    final = cause is Termination.MISCONFIGURED or isinstance(exc, EnvironmentWrong)
    may_pass = not final or isinstance(exc, ToolNotOffered)
    most = config.queue.max_failures if may_pass else 1  # retrying cannot fix a setting, a task or a world's code
    try:
        await _move(sampler, RecordStatus.FAILED, {"termination": cause.value, "error": error})
        sampler.episode.status = RecordStatus.FAILED
        sampler.episode.failure, sampler.episode.misconfigured = error, not may_pass
        short = clipped(error, MAX_SLOT_ERROR_CHARS)
        await sampler.resources.store.tasks.retry_slot(claim, short, delay_s=delay_s, max_failures=most)
    except LOST as lost:
        log.info("lease lost record=%s %s", claim.record_id, lost)


async def _release_in_time(sampler: AsyncSampler, exc: BaseException) -> None:
    """Release the slot. If that takes longer than `CLEANUP_S`, the slot returns when its lease ends."""
    try:
        await asyncio.wait_for(_release(sampler, exc), CLEANUP_S)
    except TimeoutError:
        log.warning("slot not released within %g s record=%s", CLEANUP_S, sampler.claim.record_id)


async def _release(
    sampler: AsyncSampler,
    exc: BaseException,
    termination: Termination = Termination.CANCELLED,
    delay_s: float = 0.0,
) -> None:
    """Release the slot, then abandon the record. A cancellation that came after the slot had its score changes neither."""
    tasks, claim = sampler.resources.store.tasks, sampler.claim
    try:
        await tasks.release_slot(claim, delay_s)
    except LeaseLost:
        if await tasks.is_played_by(claim):
            log.info("cancelled after its end record=%s", claim.record_id)
            sampler.episode.status = RecordStatus.SCORED
            return
        log.info("lease lost record=%s", claim.record_id)
    await _abandon(sampler, error_text(exc), termination)


async def _abandon(sampler: AsyncSampler, error: str, termination: Termination = Termination.CANCELLED) -> None:
    sampler.episode.status = RecordStatus.ABANDONED
    await sampler.finish_turn(DispatchStatus.CANCELLED, failed=True)
    try:
        await _move(sampler, RecordStatus.ABANDONED, {"termination": termination.value, "error": error})
    except IllegalMove as exc:
        log.info("nothing to abandon: %s", exc)  # cancelled before the record was written, or after its end


async def _move(sampler: AsyncSampler, to: RecordStatus, how: dict[str, Any]) -> None:
    """Move the record to an unscored end, with the episode's log if it fits into the document."""
    records, record = sampler.resources.store.records, sampler.claim.record_id
    try:
        await records.move(record, to, {**sampler.episode.values(), **how})
    except DoesNotFit:
        await records.move(record, to, how)


def _cause(exc: Exception) -> Termination:
    if isinstance(exc, ToolFailure):
        return Termination.TOOL_FAILURE
    if isinstance(exc, EnvironmentFailed):
        return Termination.ENVIRONMENT_FAILURE
    if isinstance(exc, AgentFailed):
        return Termination.AGENT_FAILURE
    if isinstance(exc, AgentCrashed):
        return Termination.AGENT_CRASHED
    if isinstance(exc, ScorerFailed):
        return Termination.SCORER_FAILURE
    if isinstance(exc, ConfigError) or (isinstance(exc, EngineRefused) and not isinstance(exc, KeyRefused)):
        return Termination.MISCONFIGURED  # an engine refuses the same request again
    if isinstance(exc, DoesNotFit):
        return Termination.NOT_STORABLE
    if isinstance(exc, VersionUnavailable):
        return Termination.VERSION_AWAY
    return Termination.TIME_LIMIT if isinstance(exc, TimeoutError) else Termination.ENGINE_FAILURE
