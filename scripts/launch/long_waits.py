"""Waits that the display reports as events: after a minute, then after ten times as long, and so on."""

from collections.abc import Sequence

from shared.documents.run import Worker
from shared.processes.waits import WAITED

FIRST_S = 60.0


class LongWaits:
    def __init__(self) -> None:
        self._next_s: dict[str, float] = {}  # by worker

    def new(self, workers: Sequence[Worker]) -> list[str]:
        """The waits of these workers that have become long since the last call."""
        found = []
        for worker in workers:
            waited = worker.stats.get(WAITED)
            waited_s = float(waited) if isinstance(waited, int | float) else 0.0
            due_s = self._next_s.get(worker.id, FIRST_S)
            if waited_s < FIRST_S:
                self._next_s[worker.id] = FIRST_S
            elif waited_s >= due_s:
                while due_s <= waited_s:
                    due_s *= 10
                self._next_s[worker.id] = due_s
                found.append(f"{worker.kind} {worker.host}:{worker.pid} {worker.doing}")
        return found
