"""The engine keeper: runs and updates one inference engine of a run.

    start (a child, or a given URL) ─▶ register ─▶ ┌ beat: load and state into `inference_services`          ┐
                                                   └ follow: the wanted version ─▶ merge ─▶ pause ─▶         │
                                                     update ─▶ check the engine's report ─▶ continue         ┘
                                                     (or: join its broadcast ─▶ pause ─▶ receive ─▶ …)
    On a device that it shares with a trainer: sleep while that one computes, wake with the newest weights (`sharing.py`)

Promise: an engine is UP only under the version that it reports itself (`update.py` describes the steps). Versions published as
changes or adapters are merged here first (`shared.weights.assembly`), or, on request, adapters are loaded by the engine under
names of their own (`adapters.py`). Files are checked before an engine sees them: their
checksums, and the names, shapes and dtypes of their tensors. A broadcast carries the published weights (`broadcast.py`); if it
fails, the version is loaded from disk. An engine that joins late or restarts begins with the newest version, without the
trainer's help. If a version cannot be merged, the engine stays at, or goes to, the newest one that can, and
`needs_full_weights` in its document requests a complete one. While evaluation tasks of a version are open, one engine serves that
version (`target.py`).
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from pathlib import Path
from typing import Literal

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.client.reports import EngineLoad
from sampler.core.errors import EngineError, EngineRefused, EngineUnavailable
from sampler.core.service.loops import every, poll
from sampler.engine.keeper.adapters import EngineAdapters
from sampler.engine.keeper.broadcast import Receiver
from sampler.engine.keeper.config import KeeperConfig
from sampler.engine.keeper.lifecycle import EngineLifecycle
from sampler.engine.keeper.loadable import LoadableVersions
from sampler.engine.keeper.pulling import NotPulled, PulledVersions
from sampler.engine.keeper.report import Reports, reports_start
from sampler.engine.keeper.sharing import SharedDevice
from sampler.engine.keeper.starting import announce_first, has_loaded
from sampler.engine.keeper.target import target_version
from sampler.engine.keeper.update import drain, update
from shared.documents.run import InferenceService, PolicyVersion
from shared.documents.states import ServiceStatus
from shared.errors import DataError
from shared.processes.failure import failure_now
from shared.processes.waits import Activity
from shared.store import Store
from shared.store.poll_timer import LONGEST_S, PollTimer
from shared.store.signals import Signal
from shared.weights.assembly import Assembly, Reached
from shared.weights.layout import check_layout, read_layout

log = logging.getLogger(__name__)

FOLLOWED = (Signal.VERSIONS, Signal.TASKS, Signal.DATA)  # a version, the begin or the end of a round of evaluation
SLEEP_TRIES = 3  # of an engine that does not release its memory: then it is ended, since a trainer waits


class Keeper:
    """One engine's state: each step of an update may find it gone. `assembly` and `pulled`: see `LoadableVersions`."""

    # 6 parameters: its parts
    def __init__(
        self,
        store: Store,
        client: EngineClient,
        config: KeeperConfig,
        assembly: Assembly,
        pulled: PulledVersions | None = None,
    ) -> None:
        self._store = store
        self._client = client
        self._config = config
        self._files = LoadableVersions(store, assembly, pulled)
        self._engine = EngineLifecycle(client, config)
        self._layout = read_layout(config.model_name_or_path)
        self._changing = asyncio.Lock()  # held while the engine is paused, so that no other task leaves it paused
        self._telling = asyncio.Lock()  # serialises read-and-report, so that the last write is current
        self._id = f"keeper:{socket.gethostname()}:{os.getpid()}"
        self._serving = -1  # version that the engine last reported
        self._refused = -1  # version whose files or update failed: not retried until a newer one appears
        self._adapters = EngineAdapters(client, config) if config.adapters == "engine" else None
        self._receiver = Receiver(store, client, config.policy, self._layout, config.joins_broadcasts)
        self._torn = self._fresh = False  # it may hold weights of two versions; it has its first ones
        self._update_stats: dict[str, float] = {}  # of the last update: seconds by phase, bytes read
        self._status = ServiceStatus.DOWN
        self._activity = Activity()
        self._reports = Reports(store, self._activity)
        self._error: str | None = None
        self._sleepless = 0  # consecutive failures to put the engine to sleep
        self._share = SharedDevice(store, client, d, self._id, self.url) if (d := config.shared_device) else None
        self._woken = False  # its memory is allocated again, without weights
        self._stop = asyncio.Event()

    @property
    def url(self) -> str:
        return self._engine.url

    @property
    def _service_id(self) -> str:
        """Several keepers may serve adapters of one engine."""
        if self._adapters is None:
            return self.url
        only = "" if self._config.serve_version is None else f"@{self._config.serve_version}"
        return f"{self.url}#{self._config.policy}{only}"

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop`. Raises EngineUnavailable if the engine cannot be started or kept running, KeyRefused."""
        self._stop = stop
        with self._activity.of_process():
            await self._run(stop)

    async def _run(self, stop: asyncio.Event) -> None:
        settings = await self._store.settings.keep("keeper", self._config.snapshot(), self._id)
        await self._store.runs.note_settings("keeper", settings)
        await announce_first(self._store, self._config)
        async with self._share.occupied() if self._share else contextlib.nullcontext():
            try:
                async with reports_start(self._store, self._id, self._activity):
                    await self._start_engine()
                    await self._follow()
                await self._beat()
                async with asyncio.TaskGroup() as group:
                    loops = [
                        group.create_task(
                            poll(
                                PollTimer(self._store.signals, FOLLOWED, self._config.poll_s),
                                self._follow,
                                lambda: (
                                    LONGEST_S if self._share is None and self._serving >= 0 else self._config.poll_s
                                ),
                                until=lambda: self._engine.has_ended,
                            ),
                            name="follow",
                        ),
                        group.create_task(every(self._beat, self._config.heartbeat_s), name="beat"),
                    ]
                    await stop.wait()
                    async with self._changing:
                        for loop in loops:
                            loop.cancel()
            finally:
                await self._store.services.set_status(self._service_id, ServiceStatus.DOWN, "its keeper has exited")
                await self._store.workers.leave(self._id, failure_now())
                if self._adapters is not None and not self._engine.is_started_here:
                    await self._adapters.leave(self.url)
                await self._engine.stop()

    # ------------------------------------------------------------------ the engine's life

    async def _start_engine(self) -> None:
        """Raises EngineUnavailable if it does not start."""

        async def until_free() -> None:
            if self._share is not None:
                await self._share.until_free(self._stop)

        info = await self._engine.start(self._stop, until_free, self._report_end)
        if info is None:
            return
        self._receiver.meet(self.url, info.broadcast_ranks)
        self._serving = -1  # unknown: `_follow` sets the wanted version, and checks the report
        self._torn = self._woken = False
        self._sleepless, self._fresh = 0, self._engine.is_started_here

    async def _restart_if_dead(self) -> None:
        if self._engine.has_ended:
            await self._engine.count_end(self._stop, self._report_end)
            await self._start_engine()

    async def _report_end(self, error: str) -> None:
        self._status, self._error = ServiceStatus.DOWN, error
        await self._register(EngineLoad(running=0, waiting=0, token_usage=0.0))

    # ------------------------------------------------------------------ weights

    async def _follow(self) -> None:
        """Bring the engine to the wanted version, if necessary."""
        await self._restart_if_dead()
        if self._stop.is_set() or not await self._has_device():
            return
        target = await target_version(self._store, self._config, self.url, self._refused)
        if target is None or target.version in (self._serving, self._refused):
            return
        if 0 <= self._serving <= target.version < self._serving + self._config.follow_every:
            return  # it lags on purpose
        try:
            reached = (
                await self._by_adapter(target) or await self._by_broadcast(target) or await self._from_disk(target)
            )
        except NotPulled as exc:
            log.warning("version not pulled yet version=%d %s", target.version, exc)
            self._error = str(exc)
        except (DataError, EngineRefused) as exc:
            log.error("version not served version=%d %s", target.version, exc)
            self._refused, self._error = target.version, str(exc)
            self._status = ServiceStatus.UP if self._serving >= 0 else ServiceStatus.DOWN
        except EngineUnavailable as exc:
            log.warning("engine not updated url=%s %s", self.url, exc)
            self._serving, self._status, self._error = -1, ServiceStatus.DOWN, str(exc)
        else:
            self._serving, self._status = reached.version.version, ServiceStatus.UP
            self._error = "; ".join(reached.problems) or None
            if reached.problems:
                self._refused = target.version
                log.error("version not served version=%d instead=%d %s", target.version, self._serving, self._error)
            took = " ".join(f"{name}={value:.3g}" for name, value in self._update_stats.items())
            log.info("serving version=%d step=%d url=%s %s", self._serving, reached.version.step, self.url, took)
            await self._files.keep_only(self._serving)
        await self._beat()

    async def _has_device(self) -> bool:
        """Take turns with the trainer on a shared device; False while it is the trainer's."""
        if self._share is None:
            return True
        try:
            if await self._share.is_claimed():
                await self._sleep(self._share)
                return False
            if not self._share.asleep:
                return True
            if not await self._wake(self._share):
                return False
            self._torn = self._woken = True  # no weights: `_follow` loads the newest, and only then it goes on
            self._serving = self._refused = -1
        except EngineError as exc:
            self._sleepless += 1
            log.warning("engine does not take turns url=%s tries=%d %s", self.url, self._sleepless, exc)
            if self._sleepless >= SLEEP_TRIES:
                await self._engine.kill()  # it starts again when the device is free
            return False
        return True

    async def _wake(self, share: SharedDevice) -> bool:
        async with self._changing:
            try:
                return await share.wake()
            except EngineError:
                await self._engine.kill()  # its memory may be allocated
                raise

    async def _sleep(self, share: SharedDevice) -> None:
        if not share.asleep:
            await self._drain()
            self._status = ServiceStatus.ASLEEP
            await self._beat()  # so that samplers send nothing more
        async with self._changing:
            await share.sleep(self._pause_mode)
        self._sleepless = 0

    async def _by_adapter(self, target: PolicyVersion) -> Reached | None:
        """None: adapters are merged. Raises DataError, EngineRefused; EngineUnavailable if the engine does not answer."""
        if self._adapters is None:
            return None
        started = time.monotonic()
        target = await self._files.adapter_of(target)
        size = await self._adapters.serve(self.url, target)
        self._update_stats = {"update_bytes": float(size), "update_engine_s": time.monotonic() - started}
        return Reached(target, Path(target.path), (), {}, size)

    async def _by_broadcast(self, target: PolicyVersion) -> Reached | None:
        """None: not offered, or this engine was excluded and keeps serving. Raises EngineUnavailable."""
        started = time.monotonic()
        if not self._receiver.is_offered(target):
            return None
        self._fresh = False
        await self._drain()
        place = await self._receiver.join(target)
        if place is None:
            return None
        joined = time.monotonic()
        async with self._changing:
            self._status = self._config.status_of_update
            self._torn = True
            await self._receiver.receive(place, self._pause_mode)
            self._torn = False
        self._update_stats = {
            "update_broadcast_bytes": float(place.bytes),
            "update_join_s": joined - started,
            "update_engine_s": time.monotonic() - joined,
        }
        return Reached(target, Path(target.path), (), {}, 0)

    async def _from_disk(self, target: PolicyVersion) -> Reached:
        reached = await self._files.merged(target, self._serving)
        await asyncio.to_thread(check_layout, reached.folder, self._layout)
        fresh, self._fresh = self._fresh and not self._torn, False
        if not (fresh and await has_loaded(self._client, self.url, self._config.model_name_or_path, reached)):
            self._status = self._config.status_of_update
            await self._update(reached)
        return reached

    async def _update(self, reached: Reached) -> None:
        started = time.monotonic()
        await self._drain()
        paused = time.monotonic()
        async with self._changing:
            version = reached.version.version
            await update(self._client, self.url, reached.folder, version, self._pause_mode, torn=self._torn)
            self._torn = self._woken = False
        seconds = {**reached.seconds, "drain": paused - started, "engine": time.monotonic() - paused}
        self._update_stats = {"update_bytes": float(reached.bytes)} | {f"update_{n}_s": s for n, s in seconds.items()}

    @property
    def _pause_mode(self) -> Literal["retract", "abort"]:
        """After a sleep nothing runs, and what waits in the engine goes on waiting."""
        return "abort" if self._config.weight_update_mode == "abort" and not self._woken else "retract"

    async def _drain(self) -> None:
        if self._config.weight_update_mode == "drain" and not self._woken:
            self._status = ServiceStatus.DRAINING
            await self._beat()  # reports DRAINING, so that samplers send nothing more
            await drain(self._client, self.url, self._config.drain_s, self._config.poll_s)

    # ------------------------------------------------------------------ reports

    async def _beat(self) -> None:
        load = EngineLoad(running=0, waiting=0, token_usage=0.0)
        try:
            load = await self._client.load(self.url)
            if self._status is ServiceStatus.DOWN and self._serving >= 0:
                self._serving = -1  # it is back with an unknown version: `_follow` sets and checks it
                if self._share is not None and self._share.asleep:
                    self._status = ServiceStatus.ASLEEP
            if self._adapters is not None and await self._adapters.is_lost(self.url):
                self._serving, self._status = -1, ServiceStatus.DOWN  # `_follow` loads it again
        except EngineError as exc:
            self._status, self._error = ServiceStatus.DOWN, str(exc)
        await self._register(load)

    async def _register(self, load: EngineLoad) -> None:
        stats = {
            "running": load.running,
            "waiting": load.waiting,
            "restarts": self._engine.restarts,
            **self._update_stats,
        }
        async with self._telling:
            service = InferenceService(
                id=self._service_id,
                url=self.url,
                policy=self._config.policy,
                version=self._serving,
                adapter=self._adapters.serving if self._adapters else None,
                follow_every=self._config.follow_every,
                serve_version=self._config.serve_version,
                status=self._status,
                kind=self._engine.kind,
                dtype=self._engine.dtype,
                capacity=self._engine.capacity,
                context=self._engine.context,
                running=load.running,
                waiting=load.waiting,
                token_usage=load.token_usage,
                broadcast_ranks=self._receiver.ranks,
                weights_url=self._files.url,
                keeper=self._id,
                error=self._error,
                needs_full_weights=self._files.wants_full,
                heartbeat_s=self._config.heartbeat_s,
            )
            await self._reports.write(service, stats)
