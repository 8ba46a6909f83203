"""A run on a virtual clock: samplers with a number of places, engines, the admission gate and the trainer.

    gate ─▶ order ─▶ place ─▶ request ─▶ engine ─▶ tool ─▶ … ─▶ group complete ─▶ settled ─▶ step ─▶ weights ─▶ gate

The gate is that of `shared/store/admission.py`: (1 + max_staleness) · groups_per_step groups may be admitted and not be part of
the newest weights.
Nothing is random: equal workloads and settings give equal results. An event costs O(log n), a claim O(open groups).
"""

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from scripts.bench.scheduling.engine import EngineModel, Request, SimulatedEngine
from scripts.bench.scheduling.order import Choice, Order
from scripts.bench.scheduling.playing import OpenGroup, Play
from scripts.bench.scheduling.workload import Workload

AFFINITY_SLACK = 0.25  # as `PoolLimits.affinity_slack`: how much fuller the episode's last engine may be


@dataclass(frozen=True, slots=True)
class Policy:
    """`extra`: slots beyond the group's size, of which those that run once the group is full are cancelled. `drain`: an engine
    takes new weights once its requests have ended; else they go on with the new weights."""

    order: Order = Order.TASK
    extra: int = 0
    drain: bool = False

    @property
    def name(self) -> str:
        return f"{self.order}{f', {self.extra} extra' if self.extra else ''}{', drain' if self.drain else ''}"


@dataclass(frozen=True, slots=True)
class RunModel:
    """`places`: episodes at once, of all samplers. `in_order`: a step waits for older groups (`stale_data: wait`).

    `train_s` and `train_token_s`: a step takes the first, and the second for each sampled token. `settle_s`: from a group's last
    episode to its data. `publish_s`: from a step's end until engines load its weights.
    """

    engine: EngineModel
    groups_per_step: int
    steps: int
    places: int
    max_staleness: int
    in_order: bool = False
    train_s: float = 0.0
    train_token_s: float = 0.0
    settle_s: float = 0.0
    publish_s: float = 0.0


@dataclass(slots=True)
class SimulatedOutcome:
    """Sums over a run. `engine_busy_s`: with a running request, over all engines. `trained`, `cancelled` and
    `barren` are sampled tokens: of steps, of cancelled episodes, of groups without data; `unused` those of the rest."""

    seconds: float = 0.0
    step_ends: list[float] = field(default_factory=list)
    engine_busy_s: float = 0.0
    running_s: float = 0.0  # sum over requests of the time in which they ran
    playing_s: float = 0.0  # of the episodes that have ended
    sampled: int = 0
    trained: int = 0
    cancelled: int = 0
    barren: int = 0
    unused: int = 0
    recomputed: int = 0  # prompt and reply tokens that were prefilled again for new weights
    staleness: Counter[int] = field(default_factory=Counter)  # trained tokens by steps
    trained_lengths: list[int] = field(default_factory=list)  # sampled tokens of each trained episode
    slot_lengths: list[int] = field(default_factory=list)  # whole lengths of all slots of the trained groups


class Simulator:
    """Raises ValueError for a workload that no step can ever be made of."""

    def __init__(self, workload: Workload, run: RunModel, policy: Policy | None = None) -> None:
        if not any(group.usable for group in workload.groups):
            raise ValueError(f"none of the {len(workload.groups)} groups has training data; expected one or more")
        self._workload, self._run, self._policy = workload, run, policy or Policy()
        self._engines = [SimulatedEngine(run.engine) for _ in range(run.engine.count)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._choice = Choice(self._policy.order, run.engine, run.places)
        self._claimable: dict[int, OpenGroup] = {}  # admitted, with free slots, by `seq`
        self._unended: dict[int, OpenGroup] = {}  # admitted and not settled
        self._plays: dict[Request, Play] = {}
        self._ready: dict[int, OpenGroup] = {}
        self._admitted = self._barren = self._playing = 0
        self._step = self._gate_step = 0  # steps taken, and those whose weights the gate counts
        self._training: list[OpenGroup] = []
        self._now = 0.0
        self.outcome = SimulatedOutcome()

    def run(self) -> SimulatedOutcome:
        self._fill()
        while self._step < self._run.steps:
            self._next_event()
        self._close()
        return self.outcome

    # ------------------------------------------------------------------ the clock

    def _at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), act))

    def _next_event(self) -> None:
        """The earliest of the listed events and the engines' replies. Engines first: a reply frees what an event may need."""
        ends = [(end, i) for i, engine in enumerate(self._engines) if (end := engine.next_end()) is not None]
        end, index = min(ends, default=(float("inf"), -1))
        assert self._events or index >= 0, "the gate admits the groups of the next step"
        listed = self._events[0][0] if self._events else float("inf")
        self._now = max(self._now, min(end, listed))
        for engine in self._engines:
            engine.advance(self._now)
        if end <= listed:
            while (request := self._engines[index].pop_ended()) is not None:
                self._reply(request)
        else:
            heapq.heappop(self._events)[2]()
        self._begin_step()
        self._fill()

    # ------------------------------------------------------------------ samplers

    def _fill(self) -> None:
        """Admits groups, and gives free places to episodes."""
        self._admit()
        while self._playing < self._run.places and self._claimable:
            self._claim(self._choice.first(self._claimable))

    def _admit(self) -> None:
        run = self._run
        loaded = min(engine.version for engine in self._engines)
        self._gate_step = loaded if run.max_staleness == 0 else self._step
        budget = min(1 + run.max_staleness, run.steps - self._gate_step) * run.groups_per_step
        while self._admitted - self._barren - self._gate_step * run.groups_per_step < budget:
            seq, group = self._admitted, self._workload.group(self._admitted)
            opened = OpenGroup(seq, group, list(group.slots(self._policy.extra)))
            self._claimable[seq] = self._unended[seq] = opened
            self._admitted += 1

    def _claim(self, opened: OpenGroup) -> None:
        play = Play(opened.seq, opened.slots.pop(0), self._now)
        if not opened.slots:
            del self._claimable[opened.seq]
        opened.playing.append(play)
        self._playing += 1
        self._at(self._now + play.episode.start_s + self._run.engine.overhead_s, partial(self._arrive, play))

    def _arrive(self, play: Play) -> None:
        if play.cancelled:
            return
        turn, engine = play.episode.turns[play.turn], self._engine_for(play)
        if engine is not play.engine:
            play.engine, play.seen_update = engine, -1
        cold = play.turn > 0 and play.seen_update != engine.updates
        play.request = Request(turn.prompt, turn.prompt if cold else turn.fresh, turn.output)
        self._plays[play.request] = play
        engine.arrive(play.request)

    def _engine_for(self, play: Play) -> SimulatedEngine:
        least = min(self._engines, key=lambda engine: engine.load)
        slack = AFFINITY_SLACK * self._run.engine.capacity
        return play.engine if play.engine is not None and play.engine.load <= least.load + slack else least

    def _reply(self, request: Request) -> None:
        play = self._plays[request]
        self._count(play)
        assert play.engine is not None, "a request has an engine"
        play.seen_update = play.engine.updates
        after = self._now + play.episode.turns[play.turn].tool_s
        play.turn += 1
        if play.turn == len(play.episode.turns):
            self._at(after, partial(self._end, play))
        else:
            self._at(after + self._run.engine.overhead_s, partial(self._arrive, play))

    def _count(self, play: Play) -> None:
        """The tokens of its request, which has ended or was cancelled."""
        if play.request is not None:
            del self._plays[play.request]
            play.versions += play.request.versions
            self.outcome.sampled += play.request.versions.total()
            play.request = None

    def _end(self, play: Play) -> None:
        if play.cancelled:
            return
        opened = self._unended[play.seq]
        self._free(opened, play)
        opened.ended.append(play)
        self._choice.ended(opened, self._now - play.began)
        if len(opened.ended) == len(opened.group.episodes):
            self._claimable.pop(play.seq, None)
            for late in list(opened.playing):
                self._cancel(opened, late)
            self._at(self._now + self._run.settle_s, partial(self._settle, opened))

    def _free(self, opened: OpenGroup, play: Play) -> None:
        opened.playing.remove(play)
        self._playing -= 1
        self.outcome.playing_s += self._now - play.began

    def _cancel(self, opened: OpenGroup, play: Play) -> None:
        play.cancelled = True
        if play.request is not None and play.engine is not None:
            play.engine.cancel(play.request)
        self._count(play)
        self._free(opened, play)
        self.outcome.cancelled += play.versions.total()

    # ------------------------------------------------------------------ the trainer

    def _settle(self, opened: OpenGroup) -> None:
        del self._unended[opened.seq]
        if opened.group.usable:
            self._ready[opened.seq] = opened
        else:
            self._barren += 1
            self.outcome.barren += _tokens(opened.ended)

    def _begin_step(self) -> None:
        run = self._run
        if self._training or len(self._ready) < run.groups_per_step or self._step == run.steps:
            return
        first = min(self._unended, default=self._admitted)
        seqs = sorted(seq for seq in self._ready if not run.in_order or seq < first)[: run.groups_per_step]
        if len(seqs) < run.groups_per_step:
            return
        self._training = [self._ready.pop(seq) for seq in seqs]
        plays = [play for opened in self._training for play in opened.ended]
        for play in plays:
            for version, tokens in play.versions.items():
                self.outcome.staleness[self._step - version] += tokens
        self.outcome.trained += _tokens(plays)
        self.outcome.trained_lengths += [play.episode.tokens for play in plays]
        self.outcome.slot_lengths += [
            episode.tokens for opened in self._training for episode in opened.group.slots(self._policy.extra)
        ]
        self._at(self._now + run.train_s + run.train_token_s * _tokens(plays), self._end_step)

    def _end_step(self) -> None:
        self._step += 1
        self._training = []
        self.outcome.step_ends.append(self._now)
        self._at(self._now + self._run.publish_s, partial(self._publish, self._step))

    def _publish(self, version: int) -> None:
        for engine in self._engines:
            engine.update(version, drain=self._policy.drain)

    def _close(self) -> None:
        """Counts what was sampled and not trained."""
        for play in list(self._plays.values()):
            assert play.engine is not None, "a request has an engine"
            assert play.request is not None, "what is played has a request"
            play.engine.cancel(play.request)
            self._count(play)
        rest = [*self._unended.values(), *self._ready.values()]
        self.outcome.seconds = self._now
        self.outcome.unused = sum(_tokens([*opened.ended, *opened.playing]) for opened in rest)
        self.outcome.engine_busy_s = sum(engine.busy_s for engine in self._engines)
        self.outcome.running_s = sum(engine.running_s for engine in self._engines)
        self.outcome.recomputed = sum(engine.recomputed for engine in self._engines)


def _tokens(plays: Sequence[Play]) -> int:
    return sum(play.versions.total() for play in plays)
