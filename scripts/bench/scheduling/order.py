"""The order in which free places take episodes, and what it knows of their lengths.

Lengths are seconds from an episode's claim to its end. What is expected of a task is the mean over those of its group that have
ended and one more, the prior: the mean of the task's earlier groups, else of its source's episodes, else of all.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from scripts.bench.scheduling.engine import EngineModel
from scripts.bench.scheduling.playing import OpenGroup
from scripts.bench.scheduling.workload import SimulatedEpisode, SimulatedGroup


class Order(StrEnum):
    TASK = "task"  # the earliest task that has a free slot: what samplers do
    LONGEST = "longest"  # the task with the longest expected episodes first
    SHORTEST = "shortest"
    ORACLE = "oracle"  # the task with the longest next episode first, by its real length


@dataclass(slots=True)
class Mean:
    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else 0.0


@dataclass(slots=True)
class Expectations:
    """Learned from the episodes that have ended so far in the simulation, as a sampler could."""

    _siblings: defaultdict[int, Mean] = field(default_factory=lambda: defaultdict(Mean))  # by `seq`
    _tasks: defaultdict[str, Mean] = field(default_factory=lambda: defaultdict(Mean))
    _sources: defaultdict[str, Mean] = field(default_factory=lambda: defaultdict(Mean))
    _all: Mean = field(default_factory=Mean)

    def add(self, seq: int, group: SimulatedGroup, seconds: float) -> None:
        for mean in (self._siblings[seq], self._tasks[group.task], self._sources[group.source], self._all):
            mean.add(seconds)

    def of(self, seq: int, group: SimulatedGroup) -> float:
        siblings, task, source = self._siblings[seq], self._tasks[group.task], self._sources[group.source]
        earlier = Mean(task.total - siblings.total, task.count - siblings.count)
        prior = next((mean.value for mean in (earlier, source, self._all) if mean.count), 0.0)
        return (siblings.total + prior) / (siblings.count + 1)


class Choice:
    """`places`: episodes at once; they decide how fast an engine samples, for `Order.ORACLE`."""

    def __init__(self, order: Order, engine: EngineModel, places: int) -> None:
        self._order, self._engine, self._places = order, engine, places
        self._expected = Expectations()

    def first(self, claimable: Mapping[int, OpenGroup]) -> OpenGroup:
        """Of groups with free slots, by `seq`, the one whose next slot is claimed; of equal ones the earliest."""
        if self._order is Order.TASK:
            return claimable[min(claimable)]
        return max(claimable.values(), key=lambda one: (self._rank(one), -one.seq))

    def ended(self, opened: OpenGroup, seconds: float) -> None:
        self._expected.add(opened.seq, opened.group, seconds)

    def _rank(self, one: OpenGroup) -> float:
        if self._order is Order.ORACLE:
            return self._length_s(one.slots[0])
        expected = self._expected.of(one.seq, one.group)
        return -expected if self._order is Order.SHORTEST else expected

    def _length_s(self, episode: SimulatedEpisode) -> float:
        """About how long it takes, with all places in use."""
        engine = self._engine
        token_s = engine.step_s + engine.request_step_s * min(engine.capacity, self._places / engine.count)
        turns = sum(engine.overhead_s + turn.output * token_s + turn.tool_s for turn in episode.turns)
        return episode.start_s + turns
