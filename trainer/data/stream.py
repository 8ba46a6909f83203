"""The stream: whole groups of record data, fresh and borrowed, as one step's rows for every rank.

    choose and borrow (groups) ─▶ read ─▶ normalize advantages ─▶ merge ─▶ pack (reading) ─▶ metrics (stream_metrics)
         rank 0 asks the database     └ each rank its own share, most of it ahead of time (prefetch) ┘
                                                     commit(step) marks them as used; a resume gives back

Rank 0 chooses when the step begins, the others are told. Age is measured then, where data is consumed: the optimizer steps
between the weights that sampled a group's oldest token and the weights that the step starts from.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from shared.documents import DataClaim
from trainer.accumulate import Minibatch
from trainer.bridge import StoreBridge
from trainer.config import TrainerConfig
from trainer.data.advantages import normalize
from trainer.data.groups import Choice, Chooser, Group, shares_of
from trainer.data.prefetch import Prefetch
from trainer.data.reading import LoadedGroup, Reader, Share, Shelf, loaded_of, tasks_of
from trainer.data.stream_metrics import batch_metrics
from trainer.parallel import Parallel

log = logging.getLogger(__name__)

POLL_S = 0.1
TELL_PEERS_EVERY_S = 30.0  # ranks that wait stand in a collective: show them a sign of life well before its time-out


Found = Choice | str | None  # borrowed groups; why there will be no more; None: not enough yet


@dataclass(frozen=True, slots=True)
class Batch:
    """One optimizer step's data of this rank. `metrics` are of the whole step and meant for rank 0."""

    minibatches: list[Minibatch]
    metrics: dict[str, float]
    record_ids: list[str] = field(default_factory=list)


class RecordStream:
    """`linear`: one sequence per row, for a model that no prefix tree can go through (`Learner.linear`). Enter it to
    prefetch; without that it reads when it is asked.
    """

    def __init__(
        self,
        bridge: StoreBridge,
        config: TrainerConfig,
        parallel: Parallel,
        *,
        incarnation: int,
        linear: bool = False,
    ) -> None:
        self._bridge = bridge
        self._store = bridge.store
        self._config = config
        self._parallel = parallel
        self._incarnation = incarnation
        self._chooser = Chooser(bridge, config)
        self._reader = Reader(bridge, config, linear=linear)
        self._prefetch: Prefetch | None = None
        self._shelf = Shelf()
        self._found: Found = None
        self._set_aside = 0  # groups, while a step was waited for; rank 0
        self._waiting_since: float | None = None
        self.stopping = False  # set by a signal on rank 0; every rank learns of it in `next_batch`
        self.end = ""  # why `next_batch` returned None, on every rank
        self.paused = False  # rank 0: the run is, so no step begins, whatever data there is

    def __enter__(self) -> Self:
        if self._config.prefetch:
            self._prefetch = Prefetch(
                Chooser(self._bridge, self._config), self._reader, self._config, self._parallel.data
            )
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
            if self._prefetch is not None and self._shelf.step != step:  # nobody has looked ahead: read while waiting
                self._prefetch.start(step, self._shelf)
        found = self._wait_for_groups(step) if self._parallel.is_main else None
        self._found = self._parallel.broadcast_object(found)
        return self._found is not None

    def next_batch(self, step: int) -> Batch | None:
        """Borrow `groups_per_step` fresh groups for `step` and wait until there are as many. None: no more; `end` says why.

        Every rank must call it. Raises LeaseLost when another trainer of this policy has started meanwhile.
        """
        while self._found is None:
            self.wait(step)
        found, self._found = self._found, None
        if isinstance(found, str):
            self.end = found
            return None
        assert self._waiting_since is not None, "what was found was waited for"
        started = time.monotonic()
        waited, self._waiting_since = started - self._waiting_since, None
        batch = self._batch(step, found)
        batch.metrics.update({"time/wait_s": waited, "time/load_s": time.monotonic() - started})
        return batch

    def commit(self, step: int) -> None:
        """The step is taken: its records are spent. Called by every rank, done by rank 0."""
        if self._parallel.is_main:
            claim = DataClaim(incarnation=self._incarnation, step=step)
            self._bridge(
                self._store.data.commit_step(
                    self._config.policy, claim, max_trained_count=self._config.max_trained_count
                )
            )

    # ------------------------------------------------------------------ choosing groups

    def _wait_for_groups(self, step: int) -> Found:
        deadline = time.monotonic() + TELL_PEERS_EVERY_S
        while time.monotonic() < deadline:
            if self.stopping:
                return "stopped"
            if self._bridge(self._store.runs.is_paused()) != self.paused:
                self.paused = not self.paused
                return None
            found = self._chooser.candidates(step)
            self._set_aside += len(found.stale)
            for group, reason in found.stale:
                self._chooser.set_aside(group, reason)
                log.info("stale group task=%s %s", group.task, reason)
            enough = len(found.fresh) >= self._config.groups_per_step
            if enough and not self.paused:
                chosen = found.fresh[: self._config.groups_per_step]
                if self._prefetch is not None:
                    self._prefetch.stop()
                self._chooser.borrow(chosen, self._incarnation, step)
                return Choice(chosen, found.ages)
            if self._config.data_run is not None and not enough:
                return f"run {self._config.data_run} is used up: {len(found.fresh)} groups left of the " + (
                    f"{self._config.groups_per_step} that a step takes"
                )
            time.sleep(POLL_S)
        self._chooser.check_current(self._incarnation)
        why = "paused" if self.paused else "waiting for data"
        log.info("%s step=%d ready_groups=%d of %d", why, step, len(found.fresh), self._config.groups_per_step)
        return None

    # ------------------------------------------------------------------ reading

    def _batch(self, step: int, choice: Choice) -> Batch:
        data = self._parallel.data
        shares = shares_of(choice.groups, self._config.updates_per_step, data.rank, data.size)
        shelf = self._prefetch.finish() if self._prefetch is not None else Shelf()
        mine = [group for share in shares for group in share]
        missing = [group for group in mine if group.task not in shelf.groups]
        shelf.groups |= self._reader.read(missing) if missing else {}
        loaded, normalized_by = self._normalize([loaded_of(share, shelf.groups) for share in shares])
        parts = [
            self._share(group_share, of_share, choice, shelf)
            for group_share, of_share in zip(shares, loaded, strict=True)
        ]
        metrics = normalized_by | batch_metrics(parts, data, prefetched=len(mine) - len(missing))
        if self._parallel.is_main:
            metrics["data/ready_groups"] = float(self._bridge(self._store.data.count_ready_groups(self._config.policy)))
            metrics["data/stale_groups"], self._set_aside = float(self._set_aside), 0
        if self._prefetch is not None:
            self._shelf = Shelf({t: g for t, g in shelf.groups.items() if t not in tasks_of(mine)}, step + 1)
            self._prefetch.start(step + 1, self._shelf)
        return Batch([part.minibatch for part in parts], metrics, [d.id for part in parts for d in part.data])

    def _share(self, groups: Sequence[Group], loaded: Sequence[LoadedGroup], choice: Choice, shelf: Shelf) -> Share:
        return shelf.packed.get(tasks_of(groups)) or self._reader.share(loaded, choice.ages)

    def _normalize(self, shares: Sequence[Sequence[LoadedGroup]]) -> tuple[list[list[LoadedGroup]], dict[str, float]]:
        """The groups of each share with final advantages, normalized over the whole batch, and what by."""
        if self._reader.advantages_are_final:
            return [list(share) for share in shares], {}
        groups = [group for share in shares for group in share]
        records, metrics = normalize(
            [d for group in groups for d in group.data],
            [record for group in groups for record in group.records],
            self._config.advantage_normalization,
            self._parallel.data.gather_objects,
        )
        found = iter(records)
        final = [[next(found) for _ in group.records] for group in groups]
        changed = iter(
            replace(group, records=of_group, tree=self._reader.merged(of_group))
            for group, of_group in zip(groups, final, strict=True)
        )
        return [[next(changed) for _ in share] for share in shares], metrics
