"""What a keeper reports with every heartbeat: its engine as a service, and itself as a worker."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from shared.documents.run import InferenceService, Worker
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


async def report(store: Store, service: InferenceService, stats: Mapping[str, float], activity: Activity) -> None:
    await store.services.heartbeat(service)
    assert service.keeper is not None, "this process"
    activity.set(f"{service.url} {service.status} version {service.version}")
    await store.workers.heartbeat(_worker(service.keeper, activity, service.heartbeat_s, stats))


def _worker(keeper: str, activity: Activity, heartbeat_s: float, stats: Mapping[str, float]) -> Worker:
    place = {"host": socket.gethostname(), "pid": os.getpid()}
    all_stats = {**stats, WAITED: activity.waited_s}
    return Worker(id=keeper, kind="keeper", doing=str(activity), heartbeat_s=heartbeat_s, stats=all_stats, **place)
