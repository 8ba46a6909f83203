"""The sessions of one service: leased, bounded, each played by one worker process.

    start ─▶ room? ─no─▶ ServiceFull (406)          a worker is killed ─▶ its sessions are lost; another one takes its place
       └─▶ a place among those that start ─no, within wait_s─▶ ServiceFull
               └─▶ the least loaded worker ─▶ the session, leased for lease_s ─▶ interact renews ─▶ its end, cancel, or reaped

Every session ends: by the environment, by `cancel`, by the end of its lease, or with its worker. Its worker is told each time.
"""

import asyncio
import contextlib
import itertools
import logging
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sampler.environments.environment import TASK_ERROR
from sampler.environments.worker_process import ServiceFull, WorkerLost, WorkerProcess, WorldFailed, least_loaded

log = logging.getLogger(__name__)

REAP_S = 1.0  # how often leases are looked at
RESTART_S = 1.0  # after a worker that ended: one that dies at its start must not fill the machine with its successors
MAX_REMEMBERED = 10_000  # sessions whose end is remembered, so that a late request is told how it ended
LISTING_S = 60.0
GONE = {"type": "text", "text": "[image]"}  # in the answer to a renewal


class SessionLost(Exception):
    """There is no such session, or not any more."""


class Occupied(Exception):
    """The session's last request is not answered yet."""


@dataclass(frozen=True, slots=True)
class WorldRules:
    """`kinds`: {name: what provides it}. `per_worker`: sessions of one worker at most."""

    kinds: Mapping[str, str]
    capacity: int
    num_workers: int
    max_starting: int
    wait_s: float
    start_s: float
    step_s: float
    lease_s: float
    python: str = ""

    @property
    def per_worker(self) -> int:
        return -(-self.capacity // self.num_workers)


@dataclass(slots=True)
class Session:
    number: int
    kind: str
    worker: WorkerProcess
    leased_until: float
    last: Mapping[str, Any] = field(
        default_factory=dict
    )  # the last step as a renewal is answered with it: without images
    busy: bool = False


class WorldSessions:
    def __init__(self, rules: WorldRules) -> None:
        self.rules = rules
        self.workers: list[WorkerProcess] = []
        self.starting = 0
        self.is_draining = False
        self.counts: Counter[str] = Counter()
        self._sessions: dict[int, Session] = {}
        self._ends: OrderedDict[int, str] = OrderedDict()
        # Unlike those of an earlier service at the same address, whose late requests must not meet a session of this one.
        self._numbers = itertools.count(secrets.randbelow(1 << 20) << 30 | 1)
        self._joined = asyncio.Condition()  # a worker has
        self._places = asyncio.Semaphore(rules.max_starting)

    def __len__(self) -> int:
        return len(self._sessions) + self.starting

    # ------------------------------------------------------------------ workers

    async def keep_workers(self) -> None:
        """Start the workers, and another one in the place of each that ends. Runs until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.rules.num_workers):
                    group.create_task(self._keep_one())
        finally:
            await asyncio.gather(*(worker.end() for worker in list(self.workers)))

    async def _keep_one(self) -> None:
        while True:
            try:
                worker = await WorkerProcess.started(self.rules.python, self.rules.kinds)
            except OSError as exc:  # no memory, process or descriptor is free now: the other workers go on
                log.warning("a worker cannot be started (%s); the next try follows in %g s", exc, RESTART_S)
                await asyncio.sleep(RESTART_S)
                continue
            self.workers.append(worker)
            async with self._joined:
                self._joined.notify_all()
            try:
                await worker.ended()
            finally:
                if worker.why_lost is not None:
                    self.workers.remove(worker)
            log.warning("%s; its %d sessions are lost, another takes its place", worker.why_lost, len(worker.sessions))
            self.counts["workers_lost"] += 1
            for number in list(worker.sessions):
                self._forget(number, f"lost: {worker.why_lost}")
            await asyncio.sleep(RESTART_S)

    async def ready(self) -> None:
        """Wait until all workers are up for the first time."""
        async with self._joined:
            await self._joined.wait_for(lambda: len(self.workers) >= self.rules.num_workers)

    async def indices(self, kind: str) -> Sequence[int | str]:
        """Raises WorldFailed, and WorkerLost where no worker answers."""
        worker = next((worker for worker in self.workers if worker.why_lost is None), None)
        if worker is None:
            raise WorkerLost("no worker is up")
        listed: list[int | str] = await worker.ask({"op": "indices", "kind": kind}, LISTING_S)
        return listed

    # ------------------------------------------------------------------ sessions

    async def start(self, kind: str, index: int | str, task: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
        """Raises ServiceFull, and what the worker met."""
        if self.is_draining:
            raise ServiceFull("the service ends")
        if len(self) >= self.rules.capacity:
            self.counts["full"] += 1
            raise ServiceFull(f"all {self.rules.capacity} sessions are in use")
        self.starting += 1
        try:
            async with self._place():
                return await self._start(kind, index, task)
        finally:
            self.starting -= 1

    @contextlib.asynccontextmanager
    async def _place(self) -> Any:
        try:
            async with asyncio.timeout(self.rules.wait_s):
                await self._places.acquire()
        except TimeoutError as exc:
            self.counts["full"] += 1
            raise ServiceFull(f"{self.rules.max_starting} sessions are starting at once") from exc
        try:
            yield
        finally:
            self._places.release()

    async def _start(self, kind: str, index: int | str, task: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
        worker = await self._free_worker()
        number = next(self._numbers)
        worker.sessions.add(number)
        request = {"op": "start", "session": str(number), "kind": kind, "index": index, "task": task}
        try:
            step = await worker.ask(request, self.rules.start_s)
        except BaseException:  # cancelled too: the world may have started, so the worker closes it
            worker.sessions.discard(number)
            worker.post({"op": "close", "session": str(number)})
            self.counts["failed_starts"] += 1
            raise
        self.counts["started"] += 1
        self._sessions[number] = Session(number, kind, worker, self._lease(), last=_as_remembered(step))
        self._note(number, step)
        return number, step

    async def _free_worker(self) -> WorkerProcess:
        """The one with the fewest sessions. After a loss, its successor is waited for. Raises ServiceFull."""
        try:
            async with asyncio.timeout(self.rules.wait_s), self._joined:
                while (worker := least_loaded(self.workers, self.rules.per_worker)) is None:
                    await self._joined.wait()
                return worker
        except TimeoutError as exc:
            raise ServiceFull("no worker has room: one was lost, and its successor starts") from exc

    async def interact(self, number: int, replies: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The next step; without a reply in it, a renewal of the lease. Raises SessionLost, Occupied, and what the worker met."""
        session = self._of(number)
        session.leased_until = self._lease()
        if not any(reply.get("content") or reply.get("tool_calls") for reply in replies):
            return session.last
        if session.busy:
            raise Occupied(f"session {number} has not answered its last request yet")
        session.busy = True
        try:
            request = {"op": "interact", "session": str(number), "messages": list(replies)}
            step: Mapping[str, Any] = await session.worker.ask(request, self.rules.step_s)
        except WorldFailed as exc:
            self._end(number, f"{TASK_ERROR}: {exc}")
            raise
        finally:
            session.busy = False
            session.leased_until = self._lease()
        self.counts["steps"] += 1
        session.last = _as_remembered(step)
        self._note(number, step)
        return step

    def cancel(self, number: int) -> bool:
        """End a session. False: it is not there."""
        if number not in self._sessions:
            return False
        self._end(number, "cancelled")
        return True

    def _of(self, number: int) -> Session:
        session = self._sessions.get(number)
        if session is None:
            how = self._ends.get(number, "this service never had it")
            raise SessionLost(f"no session {number}: {how}")
        return session

    def _lease(self) -> float:
        return time.monotonic() + self.rules.lease_s

    def _note(self, number: int, step: Mapping[str, Any]) -> None:
        if step["finish"]:
            self._forget(number, f"ended: {step['status']}")

    def _end(self, number: int, how: str) -> None:
        """The world goes on: its worker is told to close it."""
        session = self._sessions.get(number)
        if session is None:  # ended meanwhile: cancelled during its step
            return
        session.worker.post({"op": "close", "session": str(number)})
        self._forget(number, how)

    def _forget(self, number: int, how: str) -> None:
        session = self._sessions.pop(number, None)
        if session is None:
            return
        session.worker.sessions.discard(number)
        self.counts[how.partition(":")[0]] += 1
        self._ends[number] = how
        while len(self._ends) > MAX_REMEMBERED:
            self._ends.popitem(last=False)

    # ------------------------------------------------------------------ ends

    async def reap(self) -> None:
        """End sessions whose lease is over. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(REAP_S)
            now = time.monotonic()
            for session in list(self._sessions.values()):
                if session.leased_until < now and not session.busy:
                    log.warning("session %d (%s) was not renewed and is ended", session.number, session.kind)
                    self._end(session.number, f"reaped: not renewed for {self.rules.lease_s:g} s")

    async def drain(self, drain_s: float) -> None:
        """Start no more sessions; let those that are open end within the time; end the rest."""
        self.is_draining = True
        end = time.monotonic() + drain_s
        while len(self) and time.monotonic() < end:  # noqa: ASYNC110 - sessions end in many ways; once per process
            await asyncio.sleep(0.1)
        for number in list(self._sessions):
            self._end(number, "cancelled: the service ended")


def _as_remembered(step: Mapping[str, Any]) -> Mapping[str, Any]:
    """An image may have 8 MiB, and thousands of sessions are open."""
    if step["finish"]:
        return {**step, "messages": []}
    return {**step, "messages": [_without_images(message) for message in step["messages"]]}


def _without_images(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [part if part["type"] == "text" else GONE for part in content]}
