"""Sets of tool servers, started before they are needed: at most so many at once, and so many at all.

    take ─▶ a warm set of the profile ─────────────────────────────▶ ToolSet
              └─ none ─▶ a place among those starting ─▶ start one ─┘        no place in time: GatewayBusy

The pool keeps `warm` sets of the profile that was asked for last: the clients of one gateway are mostly alike. A set is used by
one session, and never again.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from sampler.mcp_docker.links.errors import GatewayBusy, StartFailed
from sampler.mcp_docker.starting.tool_set import MakeLinks, Profile, ToolSet

log = logging.getLogger(__name__)

BUSY_RETRY_AFTER_S = 2.0  # of busy answers
_REST_S = 1.0  # after a failed start; doubles with each, up to:
_MAX_REST_S = 30.0


class SetPool:
    """`capacity`: sets in use, starting and ending; the warm ones come on top."""

    # 7 parameters: five of them are settings
    def __init__(
        self,
        make_links: MakeLinks,
        folder: Path,
        *,
        warm: int,
        capacity: int,
        max_starting: int,
        start_s: float,
        wait_s: float,
    ) -> None:
        self._make_links, self._folder = make_links, folder
        self._wanted_warm, self.capacity = warm, capacity
        self._places = asyncio.Semaphore(max_starting)
        self._start_s, self._wait_s = start_s, wait_s
        self._profile = Profile()
        self._warm: deque[ToolSet] = deque()
        self._changed = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.in_use = 0
        self.starting = 0
        self.ending = 0
        self.num_started = 0
        self.num_failed = 0
        self.num_refused = 0
        self.last_failure = ""

    @property
    def warm(self) -> int:
        return len(self._warm)

    def begin(self) -> None:
        self._keeper = asyncio.create_task(self._keep_warm(), name="warm sets")

    async def take(self, profile: Profile) -> ToolSet:
        """A set of this profile for one session. Raises GatewayBusy and StartFailed."""
        if self.in_use + self.ending >= self.capacity:
            raise self._busy(
                f"{self.in_use} sessions are open and {self.ending} are ending, of at most {self.capacity}"
            )
        self.in_use += 1  # from here on, so that a burst does not pass the bound
        try:
            tool_set = self._warm_one(profile) or await self._started(profile)
        except BaseException:  # cancelled too: a place that no session has must become free
            self.in_use -= 1
            raise
        return tool_set

    def end(self, used: ToolSet, first: Coroutine[Any, Any, None] | None = None) -> "asyncio.Task[None]":
        """End a set, after `first`. It is ending from now on; its place is free when nothing of it is left."""
        self.in_use -= 1
        self.ending += 1
        return self._in_background(self._end(used, first))

    async def _end(self, used: ToolSet, first: Coroutine[Any, Any, None] | None) -> None:
        try:
            if first is not None:
                await first
        finally:
            try:
                await used.close()
            finally:
                self.ending -= 1

    def end_soon(self, used: ToolSet) -> None:
        self.end(used)

    async def close(self) -> None:
        """End the warm sets, and those that are starting."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        warm, self._warm = list(self._warm), deque()
        await asyncio.gather(*(each.close() for each in warm))
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _warm_one(self, profile: Profile) -> ToolSet | None:
        if profile != self._profile:
            self._profile = profile
            for other in self._warm:
                self._in_background(other.close())
            self._warm.clear()
        tool_set = None
        while self._warm and tool_set is None:
            oldest = self._warm.popleft()
            if oldest.is_whole:
                tool_set = oldest
            else:
                self._in_background(oldest.close())
        self._changed.set()
        return tool_set

    async def _started(self, profile: Profile) -> ToolSet:
        try:
            async with asyncio.timeout(self._wait_s):
                await self._places.acquire()
        except TimeoutError as exc:
            raise self._busy(f"{self.starting} sets of tool processes are starting, which is the maximum") from exc
        try:
            return await self._start(profile)
        finally:
            self._places.release()

    async def _start(self, profile: Profile) -> ToolSet:
        new = ToolSet(profile, self._make_links, self._folder)
        self.starting += 1
        try:
            await new.open(self._start_s)
        except StartFailed as exc:
            self.num_failed += 1
            self.last_failure = str(exc)
            raise
        finally:
            self.starting -= 1
        self.num_started += 1
        self.last_failure = ""
        return new

    async def _keep_warm(self) -> None:
        """Clients go first: warm sets start one by one, as long as places are left."""
        rest_s = _REST_S
        starting: set[asyncio.Task[None]] = set()
        while True:
            self._changed.clear()
            starting = {task for task in starting if not task.done()}
            for _ in range(self._wanted_warm - self.warm - len(starting)):
                starting.add(self._in_background(self._warm_up(self._profile)))
            waits = {asyncio.ensure_future(self._changed.wait()), *starting}
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waits:
                    if task not in starting:
                        task.cancel()
            if self.last_failure:
                log.error("no warm set of tool servers: %s; next try in %g s", self.last_failure, rest_s)
                await asyncio.sleep(rest_s)
            rest_s = min(_MAX_REST_S, 2 * rest_s) if self.last_failure else _REST_S

    async def _warm_up(self, profile: Profile) -> None:
        async with self._places:
            with contextlib.suppress(StartFailed):  # counted by `_start`
                new = await self._start(profile)
                if profile == self._profile and self._keeper is not None and not self._keeper.done():
                    self._warm.append(new)
                else:
                    await new.close()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _busy(self, why: str) -> GatewayBusy:
        self.num_refused += 1
        return GatewayBusy(why, BUSY_RETRY_AFTER_S)
