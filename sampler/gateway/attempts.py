"""The attempts that agents elsewhere play through this process: claimed here or by any other gateway process of the run.

    key ─▶ record ─▶ Attempt

An attempt's lease is renewed by its requests, and while one of them is sampled; without any for `attempt_idle_s` the slot goes
to another agent, as a failure. The process that renewed it last has the slot, and the attempt its place there: of
`max_concurrent_episodes` it uses one, at one process.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sampler.core.episode.resources import Resources
from sampler.gateway.attempt import Attempt
from sampler.gateway.exchange import GatewayError, Problem
from sampler.gateway.server import key_hash, new_key
from shared.documents import Claim, Task, TaskPayload
from shared.documents.agent_sessions import AgentSession

log = logging.getLogger(__name__)

ENDED_LOOK_S = 1.0


class Attempts:
    """By key. `idle_s`: after which an attempt without requests is lost. `resources_of`: under the rules of the task's group."""

    def __init__(
        self, resources: Resources, idle_s: float, resources_of: Callable[[Task], Awaitable[Resources | None]]
    ) -> None:
        """`resources_of`: None for a task whose rules this process cannot apply."""
        self._resources, self._resources_of = resources, resources_of
        self._idle_s = idle_s
        self._attempts: dict[str, Attempt] = {}

    @property
    def places(self) -> int:
        """How many attempts have their place at this process: those that it serves, and those that it claimed and that no other
        process has served since. One whose requests run at two processes at the same time has a place at both."""
        return sum(attempt.has_place for attempt in self._attempts.values())

    @property
    def busy(self) -> list[Attempt]:
        return [attempt for attempt in self._attempts.values() if attempt.is_busy]

    async def begin(self, claim: Claim) -> tuple[Attempt, str]:
        """The attempt at a claimed slot, and its key, which is in no document and no log."""
        key = new_key()
        session = AgentSession(key_hash=key_hash(key))
        await self._resources.store.sessions.begin(claim, self._resources.worker, session)
        return await self._known(key_hash(key), claim, is_new=True), key

    async def of_key(self, key: str) -> Attempt | None:
        """Also one that another process claimed, and one that has ended."""
        name = key_hash(key)
        if name in self._attempts:
            return self._attempts[name]
        store = self._resources.store
        record = await store.sessions.find(name)
        task = None if record is None else await store.tasks.get(record.task)
        if record is None or task is None:
            return None
        return await self._known(name, Claim(task=task, traj_id=record.traj_id, attempt=record.attempt))

    def forget(self, attempt: Attempt) -> None:
        for name, one in list(self._attempts.items()):
            if one is attempt:
                del self._attempts[name]

    async def renew(self) -> None:
        """Renew the leases of attempts with requests that run, forget those that are over, and learn which others serve."""
        sessions, queried_at = self._resources.store.sessions, time.monotonic()
        quiet = [one for one in self._attempts.values() if not one.is_busy]
        over = await sessions.over([one.claim.record_id for one in quiet])
        held = await sessions.held_by(self._resources.worker, [one.claim for one in quiet])
        for attempt in quiet:
            attempt.is_held(attempt.claim.record_id in held, queried_at)
        for attempt in list(self._attempts.values()):
            is_over = attempt.claim.record_id in over
            if attempt.is_busy or (attempt.needs_renewal and not is_over):  # busy: its scorer may run
                try:
                    await attempt.renew(always=True, if_own=not attempt.is_busy)
                except GatewayError as exc:
                    if attempt.is_ending:  # its slot has its score, and no lease any more
                        continue
                    log.warning("attempt lost record=%s %s", attempt.claim.record_id, exc)
                    await attempt.close()
                    self.forget(attempt)
            elif attempt.is_idle or is_over:
                self.forget(attempt)

    async def cancel_ended(self) -> None:
        """Cancel the requests of attempts that have ended at another process, which waits for them. A request that was opened
        since the last look was told then that its attempt goes on."""
        before = time.monotonic() - ENDED_LOOK_S
        asking = {
            one.claim.record_id: one
            for one in self._attempts.values()
            if one.has_open_request and one.played_at < before
        }
        for name in await self._resources.store.sessions.over(list(asking)) if asking else ():
            log.info("ended at another process, requests cancelled record=%s", name)
            await asking[name].close()

    async def close(self) -> None:
        for attempt in self._attempts.values():
            await attempt.close()

    async def _known(self, name: str, claim: Claim, *, is_new: bool = False) -> Attempt:
        """Raises GatewayError."""
        resources = await self._resources_of(claim.task)
        if resources is None:
            raise GatewayError(
                Problem.FAILED, f"this gateway cannot apply the rules of task {claim.task.id}; see its alarms"
            )
        return self._attempts.setdefault(name, Attempt(resources, claim, self._idle_s, is_new=is_new))


def visible_payload(payload: TaskPayload, *, answers: bool) -> dict[str, Any]:
    """The task as its agent reads it: without the right answer, unless the setting `agent_answers` says so."""
    return payload.model_dump(mode="json", exclude=None if answers else {"answer"})


def offer_of(
    attempt: Attempt, key: str, url: str, opening: list[dict[str, Any]], *, answers: bool
) -> Mapping[str, Any]:
    """The claimed attempt as its harness reads it. `answers`: with the right one."""
    task = attempt.claim.task
    return {
        "record": attempt.claim.record_id,
        "url": url,
        "base_url": f"{url}/v1",
        "api_key": key,
        "model": task.policy,
        "split": task.split,
        "query": task.payload.query,
        "messages": opening,
        "task": visible_payload(task.payload, answers=answers),
    }
