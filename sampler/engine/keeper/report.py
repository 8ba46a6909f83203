"""What a keeper reports: its engine as a service, and itself as a worker."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from shared.documents.run import HEARTBEAT_S, InferenceService, Worker
from shared.processes.waits import WAITED, Activity
from shared.store import Store
from shared.store.heartbeats import UNCHANGED_S, HeartbeatTimer

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
    """The keeper's two documents, each written when it changes. An engine that works is written every `HEARTBEAT_S` all the same:
    samplers count its reports of load."""

    def __init__(self, store: Store, activity: Activity) -> None:
        self._store, self._activity = store, activity
        self._service, self._worker = HeartbeatTimer(), HeartbeatTimer()

    async def write(self, service: InferenceService, stats: Mapping[str, float]) -> None:
        unchanged_s = HEARTBEAT_S if service.running + service.waiting > 0 else UNCHANGED_S
        if self._service.is_due(service, unchanged_s):
            await self._store.services.heartbeat(service)
            self._service.written(service)
        assert service.keeper is not None, "this process"
        self._activity.set(f"{service.url} {service.status} version {service.version}")
        worker = _worker(service.keeper, self._activity, service.heartbeat_s, stats)
        if self._worker.is_due(worker.doing, unchanged_s):
            await self._store.workers.heartbeat(worker)
            self._worker.written(worker.doing)


def _worker(keeper: str, activity: Activity, heartbeat_s: float, stats: Mapping[str, float]) -> Worker:
    place = {"host": socket.gethostname(), "pid": os.getpid()}
    all_stats = {**stats, WAITED: activity.waited_s}
    return Worker(id=keeper, kind="keeper", doing=str(activity), heartbeat_s=heartbeat_s, stats=all_stats, **place)
