"""The stream: whole groups of record data, fresh and borrowed, as one step's rows for every rank.

    choose and borrow (groups) ─▶ read ─▶ normalize advantages ─▶ merge ─▶ pack (reading) ─▶ metrics (stream_metrics)
         rank 0 asks the database     └ each rank its own share, most of it ahead of time (prefetch) ┘
                                                     commit(step) marks them as used; a resume gives back

Rank 0 chooses when the step begins, the others are told. Staleness is measured then, where data is consumed: for each token the
optimizer steps between the weights that sampled it and the weights that the step starts from.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from shared.documents import DataClaim, DBRecordData
from shared.documents.run import TrainedStep, step_id
from shared.errors import LeaseLost
from shared.processes.waits import Wait
from shared.store.poll_timer import PollTimer
from shared.store.signals import Signal
from trainer.data.equal_groups import EqualGroups, has_advantage
from trainer.data.groups import Candidates, Group, GroupSelection, GroupSelector, shares_of
from trainer.data.prefetch import Prefetch
from trainer.data.reading import PrefetchBuffer, Reader, tasks_of
from trainer.data.selection_metrics import Selection
from trainer.data.stream_metrics import batch_metrics
from trainer.data.supply import TaskSupply
from trainer.process.parallel import Parallel, rank_0_wait
from trainer.process.store_bridge import StoreBridge
from trainer.reporting.token_logprobs import TokenLogprobs, documents
from trainer.settings.config import TrainerConfig
from trainer.trees.experts import ModelBounds
from trainer.trees.minibatch import Minibatch
from trainer.trees.staleness import Staleness

log = logging.getLogger(__name__)

POLL_S = 0.1  # shortest interval of queries
TELL_PEERS_EVERY_S = 30.0  # ranks that wait stand in a collective: show them a sign of life well before its time-out


WaitResult = GroupSelection | str | None  # borrowed groups; why there will be no more; None: not enough yet


@dataclass(frozen=True, slots=True)
class Batch:
    """One optimizer step's data of this rank. `metrics` are of the whole step and meant for rank 0."""

    minibatches: list[Minibatch]
    metrics: dict[str, float]
    data: list[list[DBRecordData]] = field(default_factory=list)  # of each minibatch, by number of its trajectory

    @property
    def record_ids(self) -> list[str]:
        return [d.id for part in self.data for d in part]


class RecordStream:
    """`linear`: one sequence per row, for a model that no prefix tree can go through (`Learner.linear`). `short_rows`: as in
    `Learner`. `bounds`: of the model; a group with other ids or experts is dropped, with the reason, as is one with a
    spoilt document. Enter it to prefetch; without that it reads when it is asked.
    """

    # 7 parameters: the trainer's term, and what the model needs of its rows
    def __init__(
        self,
        bridge: StoreBridge,
        config: TrainerConfig,
        parallel: Parallel,
        *,
        trainer_generation: int,
        linear: bool = False,
        short_rows: bool = False,
        bounds: ModelBounds = ModelBounds(),
    ) -> None:
        self._bridge = bridge
        self._store = bridge.store
        self._config = config
        self._parallel = parallel
        self._trainer_generation = trainer_generation
        self._selector = GroupSelector(bridge, config)
        self._supply = TaskSupply(bridge, config)
        self._timer = PollTimer(bridge.store.signals, (Signal.DATA, Signal.RUN, Signal.TASKS), POLL_S)
        self._equal = EqualGroups(config)
        self._reader = Reader(bridge, config, linear=linear, short_rows=short_rows, bounds=bounds)
        self._prefetch: Prefetch | None = None
        self._buffer = PrefetchBuffer()
        self._wait_result: WaitResult = None
        self._borrowed: list[Group] = []  # for the step in hand; rank 0
        self._missing: list[Group] = []  # of the step in hand: what was not read ahead
        self._set_aside: list[Group] = []  # while a step was waited for; rank 0
        self._selection = Selection()  # rank 0
        self._waiting_since: float | None = None
        self.stopping = False  # set by a signal on rank 0; every rank learns of it in `next_batch`
        self.end = ""  # why `next_batch` returned None, on every rank
        self.used_up = False  # rank 0: it did because no task can give data any more
        self.waiting: Wait | None = None  # what `wait` waits for now
        self.paused = False  # rank 0: the run is paused, so no step begins even if data is ready

    def __enter__(self) -> Self:
        if self._config.data.prefetch:
            selector = GroupSelector(self._bridge, self._config)
            self._prefetch = Prefetch(self._bridge, selector, self._reader, self._config, self._parallel.data)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._prefetch is not None:
            self._prefetch.close()
            self._prefetch = None

    def wait(self, step: int) -> bool:
        """Wait for a while, or until a pause begins or ends; True when `next_batch` will return at once. Every rank must call it.

        Raises LeaseLost when another trainer of this policy has started meanwhile.
        """
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
            if (
                self._prefetch is not None and self._buffer.step != step
            ):  # this step was not prefetched: read while waiting
                self._prefetch.start(step, self._buffer)
        result = self._wait_for_groups(step) if self._parallel.is_main else None
        if not self._parallel.is_main:
            self.waiting = rank_0_wait(f"the groups of step {step}")
        self._wait_result = self._parallel.broadcast_object(result)
        return self._wait_result is not None

    def next_batch(self, step: int) -> Batch | None:
        """Borrow `groups_per_step` fresh groups for `step` and wait until there are as many. None: no more; `end` says why.

        Every rank must call it. Raises LeaseLost when another trainer of this policy has started meanwhile.
        """
        waited, data = 0.0, self._parallel.data
        while True:
            while self._wait_result is None:
                self.wait(step)
            result, self._wait_result = self._wait_result, None
            if isinstance(result, str):
                self.end = result
                return None
            assert self._waiting_since is not None, "what was found was waited for"
            started = time.monotonic()
            waited, self._waiting_since = waited + started - self._waiting_since, None
            updates = min(self._config.data.updates_per_step, len(result.groups))
            shares = shares_of(result.groups, updates, data.rank, data.size)
            buffer = self._read(step, result, shares)
            if buffer is not None:
                break
        batch = self._batch(step, result, shares, buffer)
        batch.metrics.update({"time/wait_s": waited, "time/load_s": time.monotonic() - started})
        return batch

    @property
    def borrowed_tasks(self) -> list[str]:
        """Of the step in hand; rank 0."""
        return [group.task for group in self._borrowed]

    def commit(self, step: int) -> None:
        """The step is taken: its records are spent. Called by every rank, done by rank 0.

        Raises LeaseLost where they are no longer borrowed for it: another start has given them back, and may have trained them.
        """
        if not self._parallel.is_main:
            return
        policy, claim = self._config.policy, DataClaim(trainer_generation=self._trainer_generation, step=step)
        marked = self._bridge(
            self._store.data.commit_step(policy, claim, max_trained_count=self._config.data.max_trained_count)
        )
        borrowed = {record for group in self._borrowed for record in group.records}
        missing = borrowed - set(marked)
        if missing:
            raise LeaseLost(
                f"step {step}: {len(missing)} of {len(borrowed)} records are no longer borrowed for it, such as "
                f"{min(missing)}; another trainer of policy {policy} has started, and this one ends"
            )
        groups = [(group.task, len(group.records)) for group in self._borrowed]
        self._bridge(
            self._store.steps.add(
                TrainedStep(
                    id=step_id(policy, step, self._trainer_generation),
                    policy=policy,
                    step=step,
                    trainer_generation=self._trainer_generation,
                    groups=groups,
                )
            )
        )

    def note_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """What was logged of the step that was committed. Called by every rank, done by rank 0."""
        if self._parallel.is_main:
            identity = step_id(self._config.policy, step, self._trainer_generation)
            self._bridge(self._store.steps.note_metrics(identity, metrics))

    def store_logprobs(self, step: int, batch: Batch, logprobs: Sequence[TokenLogprobs | None]) -> None:
        """Store what the committed step computed for each trained token. Called by every rank; each stores its own rows'."""
        if not self._parallel.is_first_of_its_rows:
            return
        generation = self._trainer_generation
        for computed, data in zip(logprobs, batch.data, strict=False):
            if computed is not None:
                self._bridge(self._store.trainer_logprobs.keep(list(documents(computed, data, step, generation))))

    # ------------------------------------------------------------------ choosing groups

    def _wait_for_groups(self, step: int) -> WaitResult:
        deadline = time.monotonic() + TELL_PEERS_EVERY_S
        while time.monotonic() < deadline:
            if self.stopping:
                return "told to stop"
            if self._pause_changed(step):
                return None
            if self.paused:
                self._bridge(self._timer.pause(until=lambda: self.stopping))
                continue
            used_up = self._supply.is_used_up()
            candidates = self._candidates(step)
            chosen = self._choose(candidates.fresh, used_up)
            if chosen:
                return self._take(step, chosen, candidates.staleness)
            if used_up and not chosen:
                self.used_up = True
                return self._supply.why_used_up(len(candidates.fresh))
            self.waiting = self._supply.wait(step, len(candidates.fresh))
            self._bridge(self._timer.pause(longest_s=self._supply.longest_pause_s, until=lambda: self.stopping))
        self._selector.check_current(self._trainer_generation)
        self._selector.free_earlier(self._trainer_generation)
        log.info("step=%d waits: %s", step, "paused" if self.paused or self.waiting is None else self.waiting.why)
        return None

    def _candidates(self, step: int) -> Candidates:
        candidates = self._selector.candidates(step)
        for group, reason in candidates.stale:
            self._selector.set_aside(group, reason)
            self._set_aside.append(group)
            log.info("stale group task=%s %s", group.task, reason)
        return candidates

    def _choose(self, fresh: list[Group], used_up: bool) -> list[Group]:
        """The groups that a step takes now; empty: it cannot begin."""
        settings = self._config.data
        if len(fresh) >= settings.groups_per_step:
            return fresh[: settings.groups_per_step]
        return fresh if used_up and not settings.drop_last else []

    def _take(self, step: int, chosen: list[Group], staleness: Staleness) -> WaitResult:
        if self._prefetch is not None:
            self._prefetch.stop()
        if len(chosen) < self._config.data.groups_per_step:
            log.warning("step %d takes %d groups: %s", step, len(chosen), self._supply.why_used_up(len(chosen)))
        self._selector.borrow(chosen, self._trainer_generation, step)
        if self._pause_changed(step):  # while this looked: the step begins with this question, or not at all
            self._selector.give_back(self._trainer_generation, step)
            return None
        self._borrowed = chosen
        self.waiting = None
        return GroupSelection(chosen, staleness)

    def _pause_changed(self, step: int) -> bool:
        """Whether the run was paused or resumed since it was last asked; `waiting` says so then."""
        before, self.paused = self.paused, self._bridge(self._store.runs.is_paused())
        if self.paused != before:
            self.waiting = self._supply.paused(step) if self.paused else None
        return self.paused != before

    # ------------------------------------------------------------------ reading

    def _read(self, step: int, choice: GroupSelection, shares: Sequence[Sequence[Group]]) -> PrefetchBuffer | None:
        """This rank's groups of the choice, read; None where one of any rank's cannot be trained: the step chooses anew."""
        buffer = self._prefetch.finish() if self._prefetch is not None else PrefetchBuffer()
        self._missing = [g for share in shares for g in share if g.task not in buffer.groups]
        loaded, unusable = self._reader.read(self._missing) if self._missing else ({}, {})
        buffer.groups |= loaded
        problems = {
            task: why for of_rank in self._parallel.data.gather_objects(unusable) for task, why in of_rank.items()
        }
        problems |= {} if problems else self._without_advantage(step, choice, shares, buffer)
        if not problems:
            return buffer
        if self._parallel.is_main:
            for group in choice.groups:
                why = problems.get(group.task)
                if why is not None:
                    self._selector.drop(group, why, self._trainer_generation, step)
                    log.warning("group set aside step=%d task=%s %s", step, group.task, why)
            self._selector.give_back(self._trainer_generation, step)
            self._borrowed = []
        self._buffer = PrefetchBuffer(buffer.groups)
        return None

    def _without_advantage(
        self, step: int, choice: GroupSelection, shares: Sequence[Sequence[Group]], buffer: PrefetchBuffer
    ) -> dict[str, str]:
        own = {group.task: has_advantage(buffer.groups[group.task]) for share in shares for group in share}
        with_advantage = {
            task: has for of_rank in self._parallel.data.gather_objects(own) for task, has in of_rank.items()
        }
        aside = self._equal.to_set_aside(step, {group.task: with_advantage[group.task] for group in choice.groups})
        self._supply.batches_skipped = self._equal.batches_skipped
        return aside

    def _batch(
        self, step: int, choice: GroupSelection, shares: Sequence[Sequence[Group]], buffer: PrefetchBuffer
    ) -> Batch:
        data, mine = self._parallel.data, [group for share in shares for group in share]
        parts, normalized_by = self._reader.shares(shares, choice.staleness, buffer, data.gather_objects)
        metrics = (
            normalized_by
            | self._equal.metrics()
            | batch_metrics(parts, data, prefetched=len(mine) - len(self._missing))
        )
        if self._parallel.is_main:
            metrics["data/ready_groups"] = float(self._bridge(self._store.data.count_ready_groups(self._config.policy)))
            metrics["data/stale_groups"] = float(len(self._set_aside))
            metrics |= self._selection.add(choice.groups, self._set_aside)
            self._set_aside = []
        if self._prefetch is not None:
            self._buffer = PrefetchBuffer(
                {t: g for t, g in buffer.groups.items() if t not in tasks_of(mine)}, step=step + 1
            )
            self._prefetch.start(step + 1, self._buffer)
        return Batch([part.minibatch for part in parts], metrics, [part.data for part in parts])
