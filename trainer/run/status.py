"""A trainer's activity, for `tandem status` and the metrics page; sent by the bridge's thread while torch computes."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from shared.documents.run import HEARTBEAT_S, Worker
from shared.http.metrics_page import of_worker, serving
from shared.processes.failure import failure_now
from shared.processes.waits import WAITED, Activity, Wait
from shared.store.heartbeats import WorkerHeartbeats
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.settings.config import TrainerConfig


class Waiter(Protocol):
    """Something that waits, and says for what."""

    waiting: Wait | None


class Status:
    """What this process does now.

    Before `announce` its heartbeats are of waits alone: a trainer that is refused at its start leaves no trace.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.activity = Activity(worker.doing)
        self._is_announced = False
        self._waiter: Waiter | None = None

    def doing(self, what: str, *, alarms: list[str] | None = None, **stats: float) -> None:
        """Set the activity. `alarms` replace the previous ones; None keeps them."""
        update: dict[str, Any] = {"stats": self._worker.stats | stats}
        self._worker = self._worker.model_copy(update=update if alarms is None else {**update, "alarms": alarms})
        self.activity.set(what)

    def announce(self) -> None:
        self._is_announced = True

    @property
    def is_due(self) -> bool:
        """Whether a heartbeat is to be sent."""
        return self._is_announced or self.activity.wait is not None

    @contextmanager
    def waiting(self, step: int, waiter: Waiter) -> Iterator[None]:
        """Meanwhile each heartbeat has the wait of `waiter`. `step`: the last one that was taken."""
        self.doing(f"looking for the data of step {step + 1}", step=step)
        self._waiter = waiter
        try:
            yield
        finally:
            self._waiter = None

    @property
    def worker(self) -> Worker:
        waiter = self._waiter
        wait = None if waiter is None else waiter.waiting
        if wait is not None:
            self.activity.set(wait)
        stats = self._worker.stats | {WAITED: self.activity.waited_s}
        return self._worker.model_copy(update={"doing": str(self.activity), "stats": stats})


def worker_id(config: TrainerConfig) -> str:
    return f"trainer:{config.policy}:{socket.gethostname()}:{os.getpid()}"


@contextmanager
def live_status(bridge: StoreBridge, config: TrainerConfig, parallel: Parallel) -> Iterator[Status]:
    """Heartbeats and the metrics page of this process while the context is open; its last heartbeat has the failure, if any."""
    host, pid = socket.gethostname(), os.getpid()
    worker = Worker(id=worker_id(config), kind="trainer", host=host, pid=pid, doing="starting")
    status = Status(worker.model_copy(update={"stats": {"rank": parallel.rank}, "heartbeat_s": HEARTBEAT_S}))

    sent: list[Worker] = []  # the last heartbeat
    heartbeats = WorkerHeartbeats(bridge.store.workers)

    async def beat() -> None:
        while True:
            if status.is_due:
                await heartbeats.write(status.worker)
                sent[:] = [status.worker]
            await asyncio.sleep(HEARTBEAT_S)

    beating = bridge.background(beat())
    address = config.report.metrics_address if parallel.is_main else None
    try:
        with status.activity.of_process(), serving(address, config.run, lambda: of_worker(status.worker)):
            yield status
    finally:
        beating.cancel()
        if sent or status.is_due:
            bridge(bridge.store.workers.leave(worker.id, failure_now()))
