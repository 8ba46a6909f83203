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
        lines = []
        for worker in workers:
            waited = worker.stats.get(WAITED)
            if self.is_due(worker.id, float(waited) if isinstance(waited, int | float) else 0.0):
                lines.append(f"{worker.kind} {worker.host}:{worker.pid} {worker.doing}")
        return lines

    def is_due(self, process: str, waited_s: float) -> bool:
        """Whether the wait of this process has become long since the last call."""
        due_s = self._next_s.get(process, FIRST_S)
        if waited_s < FIRST_S:
            self._next_s[process] = FIRST_S
            return False
        if waited_s < due_s:
            return False
        while due_s <= waited_s:
            due_s *= 10
        self._next_s[process] = due_s
        return True
