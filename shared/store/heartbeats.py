"""How often a process writes its heartbeat: while it waits, at each change, else every `UNCHANGED_S`.

A process that waits changes nothing but the seconds of its wait. Its silence until it counts as dead is that of one that works
(`shared/store/liveness.py`), so a killed process is noticed as soon.
"""

import math
import time
from typing import Any

from shared.documents.run import Worker
from shared.processes.waits import WAITED, untimed
from shared.store.runs import WorkerVerbs

UNCHANGED_S = 5.0  # three times within the least silence after which a process counts as dead


class HeartbeatTimer:
    """Times the writes of one document."""

    def __init__(self) -> None:
        self._content: Any = None
        self._written_at = -math.inf

    def is_due(self, content: Any, unchanged_s: float) -> bool:
        """Whether it differs from what was written last, or that is `unchanged_s` old."""
        return content != self._content or time.monotonic() - self._written_at >= unchanged_s

    def written(self, content: Any) -> None:
        self._content, self._written_at = content, time.monotonic()


class WorkerHeartbeats:
    """Of one process."""

    def __init__(self, workers: WorkerVerbs) -> None:
        self._workers = workers
        self._timer = HeartbeatTimer()

    async def write(self, worker: Worker) -> None:
        """Write it if it is due: that of a process that works always is. The metrics page has it in any case."""
        content = _without_seconds(worker)
        if self._timer.is_due(content, UNCHANGED_S if worker.stats.get(WAITED) else 0.0):
            await self._workers.heartbeat(worker)
            self._timer.written(content)
        else:
            self._workers.last = worker


def _without_seconds(worker: Worker) -> Worker:
    stats = {name: value for name, value in worker.stats.items() if name != WAITED}
    return worker.model_copy(update={"doing": untimed(worker.doing), "stats": stats})
