"""A run's figures, read from `metrics.jsonl` (one line per step, by the trainer) and the store.

The live display and the summary use them. Each policy has its own `metrics.jsonl`.
"""

import json
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from shared.documents.run import InferenceService, Worker
from shared.documents.states import RunState
from shared.store import Store

Line = dict[str, float]


class EvalPoint(NamedTuple):
    """A point of the reward curve: held-out reward at the weights of one step, with its 95 % interval."""

    step: int
    reward: float
    low: float
    high: float


MOVING_STEPS = 10


class StepMetrics:
    """The lines of `metrics.jsonl` by step; `read` adds lines written, or rewritten by a resume, since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode = 0
        self.lines: dict[int, Line] = {}

    def read(self) -> None:
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            status = self._path.stat()
            if status.st_ino != self._inode or status.st_size < self._offset:  # a resume rewrites the file
                self._inode, self._offset, self.lines = status.st_ino, 0, {}
            file.seek(self._offset)
            for raw in file:
                if not raw.endswith(b"\n"):
                    break  # an incomplete line: it is being written
                self._offset += len(raw)
                line = json.loads(raw)
                self.lines[int(line["step"])] = {k: v for k, v in line.items() if v is not None}

    @property
    def last_step(self) -> int:
        return max(self.lines, default=0)

    @property
    def last(self) -> Line:
        return self.lines.get(self.last_step, {})

    @property
    def never_moved(self) -> bool:
        """Whether there were steps, and each was skipped."""
        return bool(self.lines) and all(line.get("learner/skipped_steps") == 1 for line in self.lines.values())

    def column(self, name: str) -> list[float]:
        """Values of one metric in step order, without steps that lack it."""
        return [self.lines[step][name] for step in sorted(self.lines) if name in self.lines[step]]

    def sources(self) -> list[str]:
        prefix = "reward_by_source/"
        return sorted(
            {key.removeprefix(prefix) for line in self.lines.values() for key in line if key.startswith(prefix)}
        )

    def moving(self, name: str, steps: int = MOVING_STEPS) -> float:
        """Mean over the last steps; nan if there are none."""
        return mean(self.column(name)[-steps:])


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def moving_average(values: Sequence[float], steps: int = MOVING_STEPS) -> list[float]:
    """Mean of each value and of up to `steps` - 1 before it."""
    window: deque[float] = deque(maxlen=steps)
    averages = []
    for value in values:
        window.append(value)
        averages.append(sum(window) / len(window))
    return averages


@dataclass(slots=True)
class Snapshot:
    """The store's state at one moment."""

    max_steps: dict[str, int] = field(default_factory=dict)  # by policy, once its trainer has stored it
    paused: bool = False  # until `tandem resume`
    workers: list[Worker] = field(default_factory=list)  # all of the run's history
    live: frozenset[str] = frozenset()  # ids of live workers
    services: list[InferenceService] = field(default_factory=list)
    lost_attempts: int = 0  # to infrastructure failures
    failed_slots: int = 0  # slots in state `failed`
    ready_groups: dict[str, int] = field(default_factory=dict)  # by policy

    def total(self, name: str, *, live_only: bool = False) -> float:
        """Sum of a statistic over samplers."""
        counted = [w for w in self.workers if w.kind in ("sampler", "gateway") and (w.id in self.live or not live_only)]
        return sum(float(w.stats.get(name) or 0) for w in counted)


async def take_snapshot(store: Store, policies: Sequence[str]) -> Snapshot:
    run = await store.runs.get()
    admission = run.admission if run else {}
    workers, live = await store.workers.all_and_live()
    lost_attempts, failed_slots = await store.tasks.count_failures()
    return Snapshot(
        max_steps={name: admission[name].num_steps or 0 for name in policies if name in admission},
        paused=run is not None and run.state is RunState.PAUSED,
        workers=workers,
        live=frozenset(live),
        services=await store.services.all(),
        lost_attempts=lost_attempts,
        failed_slots=failed_slots,
        ready_groups={name: await store.data.count_ready_groups(name) for name in policies},
    )
