"""All sessions of the gateway: opened, found by id, and ended when their client ends them or is silent."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sampler.mcp_docker.links.errors import ServerGone
from sampler.mcp_docker.sessions.call_counts import CallCounts
from sampler.mcp_docker.sessions.gateway_session import GatewaySession
from sampler.mcp_docker.sessions.offers import Offers
from sampler.mcp_docker.sessions.rates import Rate
from sampler.mcp_docker.starting.pool import SetPool
from sampler.mcp_docker.starting.tool_set import Profile

log = logging.getLogger(__name__)

MAX_PROFILES = 64  # remembered: a client chooses its capabilities
MAX_LOST = 10_000  # episodes that were ended without their client; a client that died never asks for its own
_ID_BYTES = 24
_NO_CAPABILITIES = Profile()
_CHECKS_PER_LEASE = 10
_LONGEST_CHECK_S = 5.0


@dataclass(frozen=True)
class SessionRules:
    """Seconds and counts; see `McpDockerConfig`."""

    lease_s: float
    broken_s: float
    call_s: float
    max_parallel_calls: int
    max_calls_per_s: float


class Sessions:
    """By id; those of an episode id, which clients without protocol sessions use, by that."""

    def __init__(self, pool: SetPool, rules: SessionRules) -> None:
        self.pool, self.rules = pool, rules
        self.calls = CallCounts()
        self.num_opened = 0
        self.num_ended: dict[str, int] = {}  # by reason
        self._by_id: dict[str, GatewaySession] = {}
        self._by_episode: dict[str, asyncio.Future[GatewaySession]] = {}
        self._lost: dict[str, str] = {}  # why the tools of an episode's id were ended, until its client is told
        self._offers: dict[Profile, Offers] = {}
        self._reaper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    def begin(self) -> None:
        self._reaper = asyncio.create_task(self._reap(), name="leases of sessions")

    def of(self, session_id: str) -> GatewaySession | None:
        return self._by_id.get(session_id)

    async def open(self, profile: Profile, make: Callable[..., GatewaySession] = GatewaySession) -> GatewaySession:
        """A new session with a set of its own. Raises GatewayBusy and StartFailed."""
        tool_set = await self.pool.take(profile)
        rate = Rate(self.rules.max_calls_per_s)
        session = make(_new_id(), tool_set, self.offers(profile), self.rules.max_parallel_calls, rate)
        self._by_id[session.id] = session
        self.num_opened += 1
        return session

    def offers(self, profile: Profile) -> Offers:
        """What sets of this profile were seen to offer."""
        known = self._offers.setdefault(profile, Offers())
        if len(self._offers) > MAX_PROFILES:  # the oldest; open sessions keep theirs
            del self._offers[next(iter(self._offers))]
        return known

    async def of_episode(
        self, episode: str, profile: Profile = _NO_CAPABILITIES, make: Callable[..., GatewaySession] = GatewaySession
    ) -> GatewaySession:
        """The session of an episode id, opened by its first request. Raises GatewayBusy, StartFailed, and ServerGone once, if
        its lease has ended: new tools in place of those would have lost their state unseen."""
        why = self._lost.pop(episode, None)
        if why is not None:
            raise ServerGone(why)
        opening = self._by_episode.get(episode)
        if opening is None or _is_over(opening):
            opening = self._by_episode[episode] = asyncio.ensure_future(self.open(profile, make))
            opening.add_done_callback(partial(self._opened_for, episode))
        return await asyncio.shield(opening)

    def _opened_for(self, episode: str, opening: "asyncio.Future[GatewaySession]") -> None:
        """Also if the request that opened it was cancelled."""
        if _is_over(opening):
            self._forget_if_over(episode, opening)
        else:
            opening.result().episode = episode

    def _forget_if_over(self, episode: str, opening: "asyncio.Future[GatewaySession]") -> None:
        if self._by_episode.get(episode) is opening and _is_over(opening):
            del self._by_episode[episode]

    @property
    def num_in_flight(self) -> int:
        return sum(len(session.exchanges) for session in self._by_id.values())

    async def end(self, session: GatewaySession, reason: str) -> None:
        """Returns when nothing of it is left."""
        if self._by_id.pop(session.id, None) is None:
            return
        self.num_ended[reason] = self.num_ended.get(reason, 0) + 1
        log.info("session ended id=%s reason=%s", session.id[:8], reason)
        session.has_ended = True
        ending = self.pool.end(session.tool_set, session.end())
        if session.episode is not None and (known := self._by_episode.get(session.episode)) is not None:
            self._forget_if_over(session.episode, known)
            if reason == "silence":
                self._note_lost(session.episode)
        await asyncio.shield(ending)

    def _note_lost(self, episode: str) -> None:
        self._lost[episode] = f"this episode's tools were ended after {self.rules.lease_s:g} s without a request"
        if len(self._lost) > MAX_LOST:
            del self._lost[next(iter(self._lost))]

    async def close(self, drain_s: float) -> None:
        """Let calls in flight end, then end all sessions and warm sets."""
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.wait({self._reaper})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                while any(session.exchanges for session in self._by_id.values()):  # noqa: ASYNC110 - once, at the gateway's end
                    await asyncio.sleep(0.05)
        await asyncio.gather(*(self.end(session, "shutdown") for session in list(self._by_id.values())))
        await self.pool.close()

    async def _reap(self) -> None:
        """End sessions whose lease is over. Endings overlap: each may take seconds."""
        every_s = min(_LONGEST_CHECK_S, self.rules.lease_s / _CHECKS_PER_LEASE, self.rules.broken_s / _CHECKS_PER_LEASE)
        ending: set[asyncio.Task[None]] = set()
        while True:
            await asyncio.sleep(every_s)
            for session in list(self._by_id.values()):
                is_away = session.is_broken or session.is_unused
                if session.silent_s() > (self.rules.broken_s if is_away else self.rules.lease_s):
                    reason = "unused" if session.is_unused else "broken_off" if session.is_broken else "silence"
                    task = asyncio.create_task(self.end(session, reason))
                    ending.add(task)
                    task.add_done_callback(ending.discard)


def _is_over(opening: "asyncio.Future[GatewaySession]") -> bool:
    if not opening.done():
        return False
    return opening.cancelled() or opening.exception() is not None or opening.result().has_ended


def _new_id() -> str:
    return secrets.token_urlsafe(_ID_BYTES)
