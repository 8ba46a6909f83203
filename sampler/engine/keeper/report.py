"""What a keeper reports with every heartbeat: its engine as a service, and itself as a worker."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from shared.documents.run import InferenceService, Worker
from shared.processes.waits import WAITED, Activity, Wait
from shared.store import Store

STARTING_BEAT_S = 1.0


@asynccontextmanager
async def reports_start(store: Store, keeper: str, url: Callable[[], str], limit_s: float) -> AsyncIterator[None]:
    """Meanwhile the keeper says that it waits for its engine's first answer."""
    activity = Activity()

    async def beat() -> None:
        while True:
            activity.set(
                Wait("its engine", f"{url()} does not answer yet", f"it does, for {limit_s:g} s (start_timeout_s)")
            )
            worker = _worker(keeper, str(activity), STARTING_BEAT_S, {WAITED: activity.waited_s})
            await store.workers.heartbeat(worker)
            await asyncio.sleep(STARTING_BEAT_S)

    beating = asyncio.create_task(beat(), name="start")
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)  # an error of the store: the next report meets it too


async def report(store: Store, service: InferenceService, stats: Mapping[str, float]) -> None:
    await store.services.heartbeat(service)
    assert service.keeper is not None, "this process"
    doing = f"{service.url} {service.status} version {service.version}"
    await store.workers.heartbeat(_worker(service.keeper, doing, service.heartbeat_s, stats))


def _worker(keeper: str, doing: str, heartbeat_s: float, stats: Mapping[str, float]) -> Worker:
    place = {"host": socket.gethostname(), "pid": os.getpid()}
    return Worker(id=keeper, kind="keeper", doing=doing, heartbeat_s=heartbeat_s, stats=dict(stats), **place)
