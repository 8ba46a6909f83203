"""An episode that raises what nobody expected fails its own slot, counted, with its traceback in the record.

    bug ─▶ the slot open again, later, or failed; the task counts it ─▶ the record, failed as `unforeseen`
           └─ `max_failures` of a task's episodes: it is set aside, its open slots fail

Every write is tried though an earlier one failed: what broke the episode may break its log too. What cannot be written at all
stays leased, and its lease ends as that of a killed process does. `tests/sampler/test_unforeseen.py` raises in every stage.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from sampler.core.episode.resources import Resources
from sampler.core.episode.sampler import AsyncSampler
from sampler.core.retry_delay import retry_delay_s
from shared.documents import Claim
from shared.documents.states import RecordStatus, Termination
from shared.errors import IllegalMove, LeaseLost
from shared.outside_text import clipped, error_text
from shared.unforeseen import Bug, bug_of, is_of_the_process

log = logging.getLogger(__name__)

MAX_SLOT_ERROR_CHARS = 500  # a task document stores one per slot; the record stores the whole error


async def fail_unforeseen(sampler: AsyncSampler, exc: BaseException) -> None:
    """`exc` is not of the process."""
    bug = bug_of(exc, type(sampler))
    if isinstance(exc, IllegalMove | LeaseLost):  # raised by what handles another error
        log.info("lease lost record=%s %s", sampler.claim.record_id, exc)
        return
    episode = sampler.episode
    episode.status, episode.failure, episode.misconfigured = RecordStatus.FAILED, bug.error, bug.is_own
    await _tried("the requests' documents", lambda: sampler.finish_turn(failed=True))
    await fail_claim(sampler.resources, sampler.claim, bug, episode.values)


async def fail_claim(
    resources: Resources, claim: Claim, bug: Bug, values: Callable[[], Mapping[str, Any]] = dict
) -> None:
    """`values`: the episode's log; empty if it did not begin."""
    resources.bugs.met("episode", claim.record_id, bug)
    if await _slot_is_scored(resources, claim, bug):
        return
    await _tried("a record", lambda: resources.store.records.start(claim, resources.worker))
    how = {"termination": Termination.UNFORESEEN.value, "error": bug.error, "traceback": bug.traceback}
    for log_of in (values, dict):  # the log may be what cannot be written
        if await _tried("its end", partial(_end, resources, claim.record_id, log_of, how)):
            break


async def _slot_is_scored(resources: Resources, claim: Claim, bug: Bug) -> bool:
    """Reopen or fail the slot, unless this attempt gave it its score, which counts whatever came after it."""
    tasks, config = resources.store.tasks, resources.config
    error, most = clipped(bug.error, MAX_SLOT_ERROR_CHARS), config.queue.max_failures
    delay_s = retry_delay_s(config, claim.task.slots[claim.traj_id].failures)
    try:
        await tasks.retry_slot(claim, error, delay_s=delay_s, max_failures=most, bugs_at_most=most)
    except LeaseLost as exc:
        log.info("lease lost: %s", exc)
        return await tasks.is_played_by(claim)
    except BaseException as exc:  # also SystemExit and panics of foreign code; the process's own is raised again
        if is_of_the_process(exc):
            raise
        log.error("after a bug, the slot stays leased until its lease ends: %s", error_text(exc))
    return False


async def _end(
    resources: Resources, record: str, log_of: Callable[[], Mapping[str, Any]], how: Mapping[str, Any]
) -> None:
    """A record that has its score, as its slot has not, is abandoned."""
    values = {**log_of(), **how}
    try:
        await resources.store.records.move(record, RecordStatus.FAILED, values)
    except IllegalMove:
        await resources.store.records.move(record, RecordStatus.ABANDONED, values)


async def _tried(what: str, work: Callable[[], Awaitable[Any]]) -> bool:
    """Whether the work was done; else there is a line in the log."""
    try:
        await work()
    except BaseException as exc:  # also SystemExit and panics of foreign code; the process's own is raised again
        if is_of_the_process(exc):
            raise
        log.error("after a bug, %s was not written: %s", what, error_text(exc))
        return False
    return True
