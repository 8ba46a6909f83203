"""Where a session is opened: the least loaded service of its kind, and how many are opened at once. One per sampler process.

    episode ─▶ a service with room ─▶ start ─▶ the session
                 └─ none, or it refuses, or it is away ─▶ wait ─environment_wait_s─▶ EnvironmentBusy: the slot is released

While an episode waits for a kind, or its services report themselves full, the process claims no further task of the kind
(`full_environments`). A service that refused is left alone for as long as it asked, one that was not reached for some seconds.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sampler.core.errors import EnvironmentBusy
from sampler.core.tenant import TenantState
from sampler.core.time_limits import queued
from sampler.environments.answers import StepReply
from sampler.environments.client import EnvironmentClient, Unreachable
from sampler.environments.environment import Index
from sampler.environments.play_config import EnvironmentSettings
from sampler.environments.session import EnvironmentSession
from shared.documents.run import EnvironmentService
from shared.outside_text import clipped
from shared.processes.waits import Wait

LIST_AGE_S = 1.0  # of the list of services when one is chosen
BUSY_S = 1.0  # least rest of a service that refused: Retry-After may be 0
LONGEST_REST_S = 15.0
UNREACHED_S = 3.0  # rest of a service that was not reached
POLL_S = 0.25
SESSION_RENEW_S = 60.0  # of a session while the model thinks
MAX_CONNECTIONS = 4096
MAX_WHY_CHARS = 300

Look = Callable[[], Awaitable[Sequence[EnvironmentService]]]


async def _none() -> Sequence[EnvironmentService]:
    return ()


@dataclass(slots=True)
class _Waiting:
    """Episodes that wait for room in one kind."""

    since: float
    why: str = "no service of this environment is registered in the run"
    episodes: int = 0


@dataclass(slots=True)
class _Load:
    """Sessions of this process at one service. `then`: as many when its load was read; the rest belongs to others."""

    places: asyncio.Semaphore  # of sessions that start at once
    mine: int = 0
    then: int = 0
    rests_until: float = 0.0


class Environments(TenantState):
    """`look`: the run's live services."""

    def __init__(
        self,
        lookup: Look = _none,
        config: EnvironmentSettings | None = None,
        client: EnvironmentClient | None = None,
    ) -> None:
        self._config = config = config or EnvironmentSettings()
        self._client = client or EnvironmentClient(
            config.environment_timeout_s, config.environment_timeout_s, MAX_CONNECTIONS
        )
        self._lookup = lookup
        self._services: Sequence[EnvironmentService] = ()
        self._looked_at = -float("inf")
        self._looking = asyncio.Lock()
        self._loads: dict[str, _Load] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._kinds: set[str] = set()  # those that episodes of this process asked for

    async def close(self) -> None:
        await self._client.close()

    # ------------------------------------------------------------------ for the claims

    async def refresh(self) -> None:
        """Read the services' load, once this process has asked for a session. It goes on while nothing is played: a list that
        was full and is not read again would keep the kind's tasks from being claimed for ever."""
        if self._kinds:
            await self._listed()

    def full_environments(self) -> list[str]:
        """Kinds of which no further task is claimed now."""
        known = [kind for kind in self._kinds if kind not in self._waiting and not self._has_room(kind)]
        return sorted([*self._waiting, *known])

    def alarms(self) -> list[str]:
        """A sentence for every kind that episodes wait for."""
        now = time.monotonic()
        return [
            f"no room in environment {kind} for {now - waiting.since:.0f} s ({waiting.why}); {waiting.episodes} episodes "
            "wait, and no failure is counted"
            for kind, waiting in sorted(self._waiting.items())
        ]

    def _has_room(self, kind: str) -> bool:
        """Whether a service may have room. A foreign controller says so itself when it is asked."""
        now = time.monotonic()
        url = self._config.environment_controllers.get(kind)
        if url is not None:
            return self._load(url).rests_until <= now
        services = self._of(kind)
        return not services or any(self._free(service, now) > 0 for service in services)

    # ------------------------------------------------------------------ sessions

    @asynccontextmanager
    async def session(
        self, kind: str, index: Index, custom_task: Mapping[str, Any]
    ) -> AsyncIterator[EnvironmentSession]:
        """An open session, which ends with the block. Raises EnvironmentBusy, EnvironmentFailed, ConfigError."""
        self._kinds.add(kind)
        url, (number, opening) = await self._open(kind, index, custom_task)
        load = self._load(url)
        foreign = kind in self._config.environment_controllers
        renewing = not foreign or self._config.environment_renew_controllers
        session = EnvironmentSession(self._client, url, number, opening, self._token(kind))
        try:
            async with session.kept(SESSION_RENEW_S if renewing else None):
                yield session
        finally:
            load.mine -= 1

    async def _open(self, kind: str, index: Index, custom_task: Mapping[str, Any]) -> tuple[str, tuple[str, StepReply]]:
        """The service's URL, where the session counts as ours, and what it answered."""
        end = time.monotonic() + self._config.environment_wait_s
        waiting: _Waiting | None = None
        try:
            while True:
                url = await self._choose(kind)
                if url is not None:
                    try:
                        return url, await self._start(url, kind, index, custom_task, end, waiting is None)
                    except (EnvironmentBusy, Unreachable) as exc:
                        self._rest(url, exc)
                        why = str(exc)
                else:
                    why = "" if self._of(kind) or kind in self._config.environment_controllers else _Waiting(0).why
                waiting = waiting or self._wait(kind)
                waiting.why = clipped(why, MAX_WHY_CHARS) or waiting.why
                if time.monotonic() >= end:
                    raise EnvironmentBusy(f"no room in environment {kind}: {waiting.why}")
                async with queued(self._room_wait(kind, waiting), waiting.since):
                    await asyncio.sleep(POLL_S)  # services are asked, and tell nothing by themselves
        finally:
            if waiting is not None:
                self._wait_no_more(kind, waiting)

    async def _start(
        self, url: str, kind: str, index: Index, custom_task: Mapping[str, Any], end: float, shows_wait: bool
    ) -> tuple[str, StepReply]:
        load = self._load(url)
        load.mine += 1
        try:
            async with self._place(url, kind, end, shows_wait):
                return await self._client.start(url, kind, index, custom_task, self._token(kind))
        except BaseException:  # cancelled too: no session was begun, so none is counted
            load.mine -= 1
            raise

    @asynccontextmanager
    async def _place(self, url: str, kind: str, end: float, shows_wait: bool) -> AsyncIterator[None]:
        """Among the sessions that start at this service: a slow one delays no other. Raises EnvironmentBusy at `end`."""
        places = self._load(url).places
        waiting = self._wait(kind) if shows_wait and places.locked() else None
        try:
            why = f"{self._config.max_starting_environments} sessions are starting at {url} (max_starting_environments)"
            if waiting is not None:
                waiting.why = clipped(why, MAX_WHY_CHARS)
            try:
                remaining_s = max(0.0, end - time.monotonic()) if places.locked() else None
                wait = self._room_wait(kind, _Waiting(0.0, why))
                async with queued(wait), asyncio.timeout(remaining_s):
                    await places.acquire()
            except TimeoutError as exc:
                raise EnvironmentBusy(why) from exc
        finally:
            if waiting is not None:
                self._wait_no_more(kind, waiting)
        try:
            yield
        finally:
            places.release()

    def _room_wait(self, kind: str, waiting: _Waiting) -> Wait:
        limit = f"for {self._config.environment_wait_s:g} s at most (environment_wait_s)"
        return Wait(f"room in environment {kind}", waiting.why, f"a session of it ends, {limit}")

    def _wait(self, kind: str) -> _Waiting:
        waiting = self._waiting.setdefault(kind, _Waiting(time.monotonic(), "all sessions of its services are in use"))
        waiting.episodes += 1
        return waiting

    def _wait_no_more(self, kind: str, waiting: _Waiting) -> None:
        waiting.episodes -= 1
        if waiting.episodes == 0:
            self._waiting.pop(kind, None)

    def _token(self, kind: str) -> str | None:
        return None if kind in self._config.environment_controllers else self._config.environment_token

    # ------------------------------------------------------------------ services

    async def _choose(self, kind: str) -> str | None:
        """The least loaded service that may have room; None: there is none."""
        now = time.monotonic()
        foreign = self._config.environment_controllers.get(kind)
        if foreign is not None:
            url = foreign.rstrip("/")
            return url if self._load(url).rests_until <= now else None
        await self._listed()
        free = [service for service in self._of(kind) if self._free(service, now) > 0]
        if not free:
            return None
        return max(free, key=lambda service: self._free(service, now) / service.capacity).url

    def _of(self, kind: str) -> list[EnvironmentService]:
        return [service for service in self._services if kind in service.kinds]

    def _free(self, service: EnvironmentService, now: float) -> int:
        load = self._load(service.url)
        if load.rests_until > now:
            return 0
        return service.capacity - service.running - max(0, load.mine - load.then)

    async def _listed(self) -> None:
        async with self._looking:
            if time.monotonic() - self._looked_at < LIST_AGE_S:
                return
            known = {service.url: service.heartbeat for service in self._services}
            self._services = await self._lookup()
            self._looked_at = time.monotonic()
            for service in self._services:
                if known.get(service.url) != service.heartbeat:
                    self._load(service.url).then = self._load(service.url).mine
            listed = {service.url for service in self._services}
            self._loads = {
                url: load
                for url, load in self._loads.items()
                if url in listed or load.mine or load.rests_until > self._looked_at
            }

    def _load(self, url: str) -> _Load:
        url = url.rstrip("/")
        if url not in self._loads:
            self._loads[url] = _Load(asyncio.Semaphore(self._config.max_starting_environments))
        return self._loads[url]

    def _rest(self, url: str, exc: EnvironmentBusy | Unreachable) -> None:
        requested_s = exc.retry_after_s if isinstance(exc, EnvironmentBusy) else UNREACHED_S
        rest_s = min(LONGEST_REST_S, max(BUSY_S, requested_s or 0.0))
        self._load(url).rests_until = time.monotonic() + rest_s
