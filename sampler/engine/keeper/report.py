"""What a keeper reports: its engine as a service, and itself as a worker."""

import asyncio
import math
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from shared.documents.run import HEARTBEAT_S, InferenceService, Worker
from shared.processes.waits import WAITED, Activity
from shared.store import Store

STARTING_BEAT_S = 1.0


@asynccontextmanager
async def reports_start(store: Store, keeper: str, activity: Activity) -> AsyncIterator[None]:
    """Meanwhile the keeper says what it waits for: its device, or its engine's first answer."""

    async def beat() -> None:
        while True:
            await store.workers.heartbeat(_worker(keeper, activity, STARTING_BEAT_S, {}))
            await asyncio.sleep(STARTING_BEAT_S)

    beating = asyncio.create_task(beat(), name="start")
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)  # an error of the store: the next report meets it too


class Reports:
    """The keeper's two documents, each written when it changes, else every `HEARTBEAT_S`."""

    def __init__(self, store: Store, activity: Activity) -> None:
        self._store, self._activity = store, activity
        self._service: InferenceService | None = None  # as it was last written
        self._doing = ""  # as well
        self._service_written, self._worker_written = -math.inf, -math.inf

    async def write(self, service: InferenceService, stats: Mapping[str, float]) -> None:
        now = time.monotonic()
        if service != self._service or now - self._service_written >= HEARTBEAT_S:
            await self._store.services.heartbeat(service)
            self._service, self._service_written = service, now
        assert service.keeper is not None, "this process"
        self._activity.set(f"{service.url} {service.status} version {service.version}")
        worker = _worker(service.keeper, self._activity, service.heartbeat_s, stats)
        if worker.doing != self._doing or now - self._worker_written >= HEARTBEAT_S:
            await self._store.workers.heartbeat(worker)
            self._doing, self._worker_written = worker.doing, now


def _worker(keeper: str, activity: Activity, heartbeat_s: float, stats: Mapping[str, float]) -> Worker:
    place = {"host": socket.gethostname(), "pid": os.getpid()}
    all_stats = {**stats, WAITED: activity.waited_s}
    return Worker(id=keeper, kind="keeper", doing=str(activity), heartbeat_s=heartbeat_s, stats=all_stats, **place)
