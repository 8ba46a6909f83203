"""Chooses an engine for each request, and handles its failures.

        generate ─▶ choose (affinity, least loaded) ─▶ engine ─▶ stop | length ─▶ one Generation
                        ▲                                │
                        ├── wait, try another ◀──────────┤ EngineUnavailable: the service is suspect for a few seconds
                        └── continue the partial ◀───────┘ abort: prompt + partial ids, the remaining budget

Promises: a reply assembled from several parts is token-exact (ids, log-probs and version runs are concatenated, and each cut is
recorded); every wait is bounded; a cancelled caller leaves no request running at an engine; no request is sent with a list of
engines read more than `LIST_AGE_S` ago.
"""

import asyncio
import logging
import random
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.client.generation import Generation, NamedAdapter
from sampler.core.engines.client.prompt_images import PromptImage
from sampler.core.engines.client.streamed import OnIds
from sampler.core.engines.pool.contexts import EngineContexts
from sampler.core.engines.pool.progress import Continuation, EngineReply, Progress
from sampler.core.engines.pool.suspects import Suspects
from sampler.core.errors import AdapterNotLoaded, ContextTooLong, EngineError, EngineUnavailable, NoEngineServes
from shared.processes.waits import Wait, waiting
from shared.tokens.encoded_ids import EncodedIds

log = logging.getLogger(__name__)

# Maximum age of the list of engines when a request is sent, for any settings of a sampler. A keeper that drains its engine
# relies on it: after that time every sampler has read the new status (`sampler.engine.keeper.update.SETTLE_S`).
LIST_AGE_S = 2.0


class Service(Protocol):
    """The pool's view of a registered engine. `running` and `capacity` are requests. `status` is "UP" when it takes requests, and
    "DRAINING" when it will soon do so again: the pool waits for that. `adapter`: the name by which requests get `version`; None:
    the engine's own weights are that version."""

    @property
    def url(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def status(self) -> str: ...
    @property
    def running(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def adapter(self) -> str | None: ...


Refresh = Callable[[], Awaitable[Sequence[Service]]]


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """`refresh_s`: capped at `LIST_AGE_S`. `wait_s`: for an engine that takes requests, counted from the last time one was
    draining. `affinity_slack`: how much fuller (as a share of capacity) the episode's last service may be and still be
    preferred."""

    refresh_s: float = LIST_AGE_S
    max_failures: int = 8
    wait_s: float = 300.0
    backoff_s: float = 0.2
    max_backoff_s: float = 5.0
    suspect_s: float = 3.0
    max_suspect_s: float = 30.0
    affinity_slack: float = 0.25
    abort_s: float = 5.0


@dataclass(slots=True)
class PoolStats:
    """Counters since the start; the caller logs differences. `engine_s` sums over concurrent requests."""

    requests: int = 0
    failures: int = 0
    retries: int = 0
    continuations: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    engine_s: float = 0.0


class EnginePool:
    """One per process. `refresh` reads the services of the right policy; it is called at most every `refresh_s`.

    `vocabulary`: size of the policy's vocabulary, if known; a reply with other tokens is a failure.
    """

    def __init__(
        self,
        client: EngineClient,
        refresh: Refresh,
        limits: PoolLimits | None = None,
        *,
        vocabulary: int | None = None,
    ) -> None:
        self.stats = PoolStats()
        self._client = client
        self._refresh = refresh
        self._limits = limits or PoolLimits()
        self._vocabulary = vocabulary
        self._services: Sequence[Service] = ()
        self._refreshed_at = -float("inf")
        self._refreshing: asyncio.Task[None] | None = None
        self._mine: Counter[str] = Counter()  # our requests in flight, by url
        self._mine_then: Counter[str] = (
            Counter()
        )  # the same when `running` was read: the rest belongs to other processes
        self._suspects = Suspects(self._limits.suspect_s, self._limits.max_suspect_s)
        self.contexts = EngineContexts()
        self._aborting: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Wait for pending aborts; bounded by `abort_s`."""
        if self._aborting:
            await asyncio.wait(self._aborting, timeout=self._limits.abort_s)

    # 8 parameters: one request, and what decides which engine takes it
    async def generate(
        self,
        prompt_ids: Sequence[int] | EncodedIds,
        sampling_params: Mapping[str, Any],
        rid: str,
        affinity: str | None = None,
        timeout_s: float | None = None,
        version: int | None = None,
        on_ids: OnIds | None = None,
        images: Sequence[PromptImage] = (),
    ) -> EngineReply:
        """One whole reply to `prompt_ids`. `sampling_params` must contain `max_new_tokens`.

        `version`: use only engines that serve it (evaluation). `timeout_s` bounds each request, not their sum. `on_ids` hears
        all ids of the reply so far; after an engine failed, it may hear fewer and others. A stop *string* split over two parts
        is not detected; stop tokens are. Raises EngineRefused at once, EngineUnavailable when the retries are used up.
        """
        budget = int(sampling_params["max_new_tokens"])
        prompt, progress, began = EncodedIds.of(prompt_ids), Progress(), time.monotonic()
        while True:
            service = await self._choose(affinity, version)
            most = self.contexts.budget(service.url, len(prompt), budget)
            params = {**sampling_params, "max_new_tokens": most - len(progress.output_ids)}
            try:
                part = await self._request(
                    service,
                    prompt.then(progress.output_ids),
                    params,
                    rid,
                    timeout_s,
                    progress.listener_for(on_ids),
                    images,
                )
            except EngineUnavailable as exc:
                await self._after_failure(service.url, exc, progress)
                continue
            except ContextTooLong as exc:
                self.contexts.learn(service.url, exc, len(prompt) + len(progress.output_ids))
                continue
            affinity = service.url
            self._suspects.clear(service.url)
            progress.add(part)
            has_image_token = any(image.token in part.output_ids for image in images[:1])  # no prompt may have it
            if part.finish_reason != "abort" or len(progress.output_ids) >= most or has_image_token:
                return self._finished(part, progress, len(prompt), time.monotonic() - began)
            await self._after_abort(part, progress)

    # 7 parameters: one request at one engine, as `generate` has it
    async def _request(
        self,
        service: Service,
        input_ids: EncodedIds,
        params: Mapping[str, Any],
        rid: str,
        timeout_s: float | None,
        on_ids: OnIds | None,
        images: Sequence[PromptImage],
    ) -> Generation:
        # Engines abort by prefix and refuse a known id: every request gets a unique id, all of one length.
        request_id, url = f"{rid}-{uuid.uuid4().hex}", service.url
        adapter = None if service.adapter is None else NamedAdapter(service.adapter, service.version)
        self.stats.requests += 1
        self._mine[url] += 1
        began = time.monotonic()
        try:
            return await self._client.generate(
                url,
                input_ids,
                params,
                request_id,
                timeout_s,
                vocabulary=self._vocabulary,
                on_ids=on_ids,
                adapter=adapter,
                images=images,
            )
        except (asyncio.CancelledError, EngineUnavailable):
            self._abort(url, request_id)  # it may still be running there, unneeded
            raise
        finally:
            self._mine[url] -= 1
            self.stats.engine_s += time.monotonic() - began

    def _abort(self, url: str, request_id: str) -> None:
        task = asyncio.create_task(self._abort_quietly(url, request_id), name=f"abort {request_id}")
        self._aborting.add(task)
        task.add_done_callback(self._aborting.discard)

    async def _abort_quietly(self, url: str, request_id: str) -> None:
        try:
            async with asyncio.timeout(self._limits.abort_s):
                await self._client.abort(url, request_id)
        except (EngineError, TimeoutError) as exc:
            log.debug("abort not delivered url=%s rid=%s cause=%s", url, request_id, exc)

    async def _after_failure(self, url: str, exc: EngineUnavailable, progress: Progress) -> None:
        self.stats.failures += 1
        progress.failures += 1
        if isinstance(exc, AdapterNotLoaded):
            self._refreshed_at = -float("inf")  # the engine is well: the list of names is old
        else:
            suspicion = self._suspects.add(url)
            values = (url, suspicion.failures, suspicion.span_s, exc)
            log.warning("engine failed url=%s failures=%d suspect_s=%.1f cause=%s", *values)
        if progress.failures >= self._limits.max_failures:
            raise EngineUnavailable(f"gave up after {progress.failures} failures, the last: {exc}") from exc
        self.stats.retries += 1
        await asyncio.sleep(_backoff(self._limits, progress.failures))

    async def _after_abort(self, part: Generation, progress: Progress) -> None:
        progress.continuations.append(Continuation(part.url, len(part.output_ids), part.abort_message))
        self.stats.continuations += 1
        if part.output_ids:
            return
        # Aborted before its first token: the engine is paused or full. Without progress it counts as a failure.
        progress.failures += 1
        if progress.failures >= self._limits.max_failures:
            raise EngineUnavailable(
                f"{part.url}: aborted {progress.failures} times without a token: {part.abort_message}"
            )
        await asyncio.sleep(_backoff(self._limits, progress.failures))

    def _finished(self, last: Generation, progress: Progress, prompt_tokens: int, duration_s: float) -> EngineReply:
        self.stats.prompt_tokens += prompt_tokens
        self.stats.cached_tokens += last.cached_tokens
        self.stats.output_tokens += len(progress.output_ids)
        return progress.reply(last, prompt_tokens, duration_s)

    async def is_up(self, version: int | None = None) -> bool:
        """Whether an engine takes requests now, one that serves `version` if that is given."""
        await self._refresh_if_old()
        return bool(self._live(version))

    async def _choose(self, affinity: str | None, version: int | None) -> Service:
        """The service for the next request, to be sent at once; waits up to `wait_s` until one is up and not suspect. An engine
        that drains returns within its keeper's `drain_s`, or leaves the list: while it drains, the wait does not count."""
        await self._refresh_if_old()
        service = self._chosen(affinity, version)
        if service is not None:
            return service
        deadline = time.monotonic() + self._limits.wait_s
        with waiting(self._wait(version), inside=True) as wait:
            while True:
                if any(service.status == "DRAINING" for service in self._services):
                    deadline = time.monotonic() + self._limits.wait_s
                if time.monotonic() >= deadline:
                    which = "" if version is None else f" that serves version {version}"
                    known = f"after {self._limits.wait_s:g} s; known: {self._states()}"
                    raise NoEngineServes(f"no engine is up{which} {known}")
                await asyncio.sleep(min(0.2, max(0.01, deadline - time.monotonic())))
                await self._refresh_if_old()
                service = self._chosen(affinity, version)
                if service is not None:
                    return service
                wait.set(self._wait(version))

    def _chosen(self, affinity: str | None, version: int | None) -> Service | None:
        live = self._live(version) if self._list_age_s() < LIST_AGE_S else []  # reading the list may have taken long
        return self._least_loaded(live, affinity) if live else None

    def _live(self, version: int | None) -> list[Service]:
        up = [one for one in self._services if one.status == "UP" and one.url not in self._suspects]
        return [one for one in up if version in (None, one.version)]

    def _wait(self, version: int | None) -> Wait:
        what = "an engine" if version is None else f"an engine that serves version {version}"
        return Wait(what, f"none; known: {self._states()}", f"one is up, for {self._limits.wait_s:g} s at most")

    def _states(self) -> str:
        suspect = {True: " (suspect)", False: ""}
        known = (f"{s.url} {s.status} version {s.version}{suspect[s.url in self._suspects]}" for s in self._services)
        return ", ".join(known) or "none"

    def _least_loaded(self, live: Sequence[Service], affinity: str | None) -> Service:
        by_url = {service.url: service for service in live}
        loads = {service.url: self._load(service) for service in live}
        least = min(loads.values())
        if affinity in loads and loads[affinity] <= least + self._limits.affinity_slack:
            return by_url[affinity]
        return by_url[random.choice([url for url, load in loads.items() if load == least])]

    def _load(self, service: Service) -> float:
        """Share of capacity in use: our own requests exactly, other processes' as of the last refresh."""
        others = max(0, service.running - self._mine_then[service.url])
        return (self._mine[service.url] + others) / max(1, service.capacity)

    async def _refresh_if_old(self) -> None:
        """One refresh at a time, shared by all waiters; cancelling a waiter does not cancel it."""
        if self._list_age_s() < min(self._limits.refresh_s, LIST_AGE_S):
            return
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh_now(), name="refresh engine services")
        await asyncio.shield(self._refreshing)

    def _list_age_s(self) -> float:
        return time.monotonic() - self._refreshed_at

    async def _refresh_now(self) -> None:
        began = time.monotonic()  # an engine may start to drain right after the query is sent
        try:
            async with asyncio.timeout(self._limits.wait_s):
                self._services = await self._refresh()
        except TimeoutError as exc:
            raise EngineUnavailable(f"the list of engines could not be read within {self._limits.wait_s:g} s") from exc
        self._refreshed_at = began
        self._mine_then = self._mine.copy()
        known = {service.url for service in self._services}
        self._suspects.keep(known)
        self.contexts.keep(known)


def _backoff(limits: PoolLimits, failures: int) -> float:
    """Exponential, with jitter in the upper half, so that many episodes do not retry at once."""
    longest = min(limits.max_backoff_s, limits.backoff_s * 2.0 ** (failures - 1))
    return longest * random.uniform(0.5, 1.0)
