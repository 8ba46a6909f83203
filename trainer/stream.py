"""The stream: whole groups of record data, fresh and borrowed, as one step's rows for every rank.

    ready groups, oldest first ─▶ too old? set aside, kept, counted ─▶ borrow ─▶ shared out over ranks ─▶ merge ─▶ pack
                                                                    commit(step) marks them as used; a resume gives back

Rank 0 asks the database, the others are told which records are theirs and read those themselves. Age is measured here,
where data is consumed: the optimizer steps between the weights that sampled a record's oldest token and the weights that
the step starts from.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np
import torch

from shared.documents import DataClaim, DBRecordData, PolicyVersion
from shared.errors import LeaseLost
from shared.flatten import tree_of
from shared.states import DataStatus
from shared.trees import RecordTree
from trainer.accumulate import Minibatch
from trainer.advantages import normalize
from trainer.bridge import StoreBridge
from trainer.config import TrainerConfig
from trainer.losses import Denominators
from trainer.packing import Row, pack
from trainer.parallel import Parallel
from trainer.tree import Merging, TokenTree, merge

log = logging.getLogger(__name__)

POLL_S = 0.1
TELL_PEERS_EVERY_S = 30.0  # ranks that wait stand in a collective: show them a sign of life well before its time-out


@dataclass(frozen=True, slots=True)
class Group:
    """One task's records, and how many steps its oldest weights lie behind."""

    task: str
    records: list[str]
    num_tokens: int
    staleness: int


Found = list[Group] | Literal["stop"] | None  # None: not enough yet


@dataclass(frozen=True, slots=True)
class Batch:
    """One optimizer step's data of this rank. `metrics` are of the whole step and meant for rank 0."""

    minibatches: list[Minibatch]
    metrics: dict[str, float]
    record_ids: list[str] = field(default_factory=list)


class RecordStream:
    """`linear`: one sequence per row, for a model that no prefix tree can go through (`Learner.linear`)."""

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
        self._linear = linear
        self._versions: dict[int, PolicyVersion] = {}
        self._found: Found = None
        self._waiting_since: float | None = None
        self.stopping = False  # set by a signal on rank 0; every rank learns of it in `next_batch`

    def wait(self, step: int) -> bool:
        """Wait for a while; True when `next_batch` will return at once. Every rank must call it.

        Raises LeaseLost when another trainer of this policy has started meanwhile.
        """
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        found = self._wait_for_groups(step) if self._parallel.is_main else None
        self._found = self._parallel.broadcast_object(found)
        return self._found is not None

    def next_batch(self, step: int) -> Batch | None:
        """Borrow `groups_per_step` fresh groups for `step` and wait until there are as many. None: stop was asked for.

        Every rank must call it. Raises LeaseLost when another trainer of this policy has started meanwhile.
        """
        while self._found is None:
            self.wait(step)
        groups, self._found = self._found, None
        if isinstance(groups, str):
            return None
        assert self._waiting_since is not None, "what was found was waited for"
        started = time.monotonic()
        waited, self._waiting_since = started - self._waiting_since, None
        minibatches: list[Minibatch] = []
        trees: list[TokenTree] = []
        data: list[DBRecordData] = []
        shares = [
            share_out(part, self._parallel.data.size)[self._parallel.data.rank]
            for part in in_parts(groups, self._config.updates_per_step)
        ]
        parts = [self._read(share) for share in shares]
        data_of = [part_data for part_data, _ in parts]
        records_of, normalized_by = self._normalize(data_of, [records for _, records in parts])
        for share, part_data, records in zip(shares, data_of, records_of, strict=True):
            minibatch, part_trees = self._load(share, part_data, records)
            minibatches.append(minibatch)
            trees += part_trees
            data += part_data
        metrics = normalized_by | self._metrics(groups, trees, data, [row for m in minibatches for row in m.rows])
        metrics |= {"time/wait_s": waited, "time/load_s": time.monotonic() - started}
        return Batch(minibatches, metrics, [d.id for d in data])

    def _normalize(
        self, data_of: Sequence[Sequence[DBRecordData]], records_of: Sequence[Sequence[RecordTree]]
    ) -> tuple[list[list[RecordTree]], dict[str, float]]:
        """The trees of each part, their advantages normalized over the whole batch, and what by."""
        trees, metrics = normalize(
            [data for part in data_of for data in part],
            [tree for part in records_of for tree in part],
            self._config.advantage_normalization,
            self._parallel.data.gather_objects,
        )
        found = iter(trees)
        return [[next(found) for _ in part] for part in records_of], metrics

    def _load(
        self, groups: Sequence[Group], data: Sequence[DBRecordData], records: Sequence[RecordTree]
    ) -> tuple[Minibatch, list[TokenTree]]:
        """This rank's share of the groups of one update."""
        trees = self._merge(groups, records)
        rows = pack(trees, self._config.max_tokens_per_row, one_sequence_per_row=self._linear)
        tokens_T = torch.cat(
            [torch.from_numpy(t.trained_tokens_T) for t in trees] or [torch.zeros(0, dtype=torch.long)]
        )
        return Minibatch(rows, Denominators.count(tokens_T), [d.source for d in data]), trees

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
                return "stop"
            groups = self._fresh_groups(step)
            if len(groups) >= self._config.groups_per_step:
                chosen = groups[: self._config.groups_per_step]
                self._borrow(chosen, step)
                return chosen
            time.sleep(POLL_S)
        if not self._bridge(self._store.runs.is_current_trainer(self._config.policy, self._incarnation)):
            raise LeaseLost(f"policy {self._config.policy}: another trainer has started; this one ends")
        log.info("waiting for data step=%d ready_groups=%d of %d", step, len(groups), self._config.groups_per_step)
        return None

    def _fresh_groups(self, step: int) -> list[Group]:
        rows = self._bridge(self._store.data.ready_groups(self._config.policy, 4 * self._config.groups_per_step))
        fresh = []
        for row in rows:
            staleness = self._lag(row["min_version"], step)
            if staleness > self._config.max_staleness:
                reason = f"{staleness} steps behind step {step}; at most {self._config.max_staleness}"
                self._bridge(self._store.data.set_aside(row["records"], DataStatus.STALE, reason))
                log.info("stale group task=%s %s", row["_id"], reason)
            else:
                fresh.append(Group(row["_id"], sorted(row["records"]), row["num_tokens"], staleness))
        return fresh

    def _lag(self, version: int | None, step: int) -> int:
        """Steps between `version` and the weights that `step` starts from. None, a group without trained tokens: 0."""
        if version is None:
            return 0
        if version not in self._versions:
            known = self._bridge(self._store.versions.all(self._config.policy))
            self._versions = {v.version: v for v in known}
        return self._versions[version].lag(step - 1)

    def _borrow(self, groups: Sequence[Group], step: int) -> None:
        ids = [rid for group in groups for rid in group.records]
        claim = DataClaim(incarnation=self._incarnation, step=step)
        if not self._bridge(self._store.runs.is_current_trainer(self._config.policy, self._incarnation)):
            raise LeaseLost(f"policy {self._config.policy}: another trainer has started; this one ends")
        borrowed = self._bridge(self._store.data.claim(ids, claim))
        if borrowed != len(ids):
            raise LeaseLost(f"step {step}: borrowed {borrowed} of {len(ids)} records; another trainer takes from them")

    # ------------------------------------------------------------------ reading

    def _read(self, groups: Sequence[Group]) -> tuple[list[DBRecordData], list[RecordTree]]:
        """The groups' data, and the tree of each record from what its dispatches hold."""
        ids = [rid for group in groups for rid in group.records]
        data = self._bridge(self._store.data.load(ids))
        tokens = self._bridge(self._store.records.tokens_of([d.record for d in data]))
        return data, [tree_of(d, tokens[d.record]) for d in data]

    def _merge(self, groups: Sequence[Group], records: Sequence[RecordTree]) -> list[TokenTree]:
        found = iter(records)
        return [
            merge(
                [next(found) for _ in group.records],
                staleness=[float(group.staleness)] * len(group.records),
                drop_zero_advantage=self._config.drop_zero_advantage,
                merging=Merging.LINEAR if self._linear else Merging.TREE,
            )
            for group in groups
        ]

    def _metrics(
        self, groups: Sequence[Group], trees: Sequence[TokenTree], data: Sequence[DBRecordData], rows: Sequence[Row]
    ) -> dict[str, float]:
        """Counts over all ranks; rewards by source."""
        own = {
            "data/records": float(len(data)),
            "data/tokens_flat": float(sum(t.num_flat for t in trees)),
            "data/tokens_linear": float(sum(t.num_linear for t in trees)),
            "data/tokens_tree": float(sum(t.num_tree for t in trees)),
            "data/tokens_computed": float(sum(row.num_tokens for row in rows)),
            "data/tokens_trained": float(sum(d.num_trained_tokens for d in data)),
            "data/rows": float(len(rows)),
        }
        totals = dict(zip(own, self._parallel.data.sum_scalars(list(own.values())), strict=True))
        rows_of_all = self._parallel.data.gather_objects([(d.source, d.task, d.reward, d.metrics) for d in data])
        records = [row for part in rows_of_all for row in part]
        totals |= _rewards([(source, task, reward) for source, task, reward, _ in records])
        totals |= _own_metrics([(source, metrics) for source, _, _, metrics in records])
        totals["data/merge_ratio"] = totals["data/tokens_flat"] / max(totals["data/tokens_tree"], 1.0)
        totals["data/split_overhead"] = totals["data/tokens_computed"] / max(totals["data/tokens_tree"], 1.0) - 1.0
        ages = [g.staleness for g in groups]
        totals["data/groups"] = float(len(groups))
        totals["data/staleness_mean"] = sum(ages) / len(ages)
        totals["data/staleness_max"] = float(max(ages))
        if self._parallel.is_main:
            totals["data/ready_groups"] = float(self._bridge(self._store.data.count_ready_groups(self._config.policy)))
        return totals


def _rewards(rows: Sequence[tuple[str, str, float]]) -> dict[str, float]:
    """Of (source, task, reward) of every record. Groups of equal rewards teach a group baseline nothing."""
    rewards = np.array([reward for _, _, reward in rows])
    result = {"reward/mean": float(rewards.mean()), "reward/std": float(rewards.std())}
    for source in sorted({source for source, _, _ in rows}):
        result[f"reward_by_source/{source}"] = float(np.mean([reward for s, _, reward in rows if s == source]))
    groups: dict[str, list[float]] = {}
    for _, task, reward in rows:
        groups.setdefault(task, []).append(reward)
    effective = sum(max(group) - min(group) > 1e-6 for group in groups.values())
    result["data/effective_groups"] = float(effective)
    result["data/zero_variance_fraction"] = 1.0 - effective / len(groups)
    return result


def _own_metrics(rows: Sequence[tuple[str, Mapping[str, float]]]) -> dict[str, float]:
    """Means of what the samplers said of their records, each over those that say it; in all and by source."""
    values: dict[str, list[float]] = {}
    for source, metrics in rows:
        for name, value in metrics.items():
            values.setdefault(f"metric/{name}", []).append(value)
            values.setdefault(f"metric_by_source/{source}/{name}", []).append(value)
    return {key: float(np.mean(found)) for key, found in sorted(values.items())}


def in_parts(groups: Sequence[Group], count: int) -> list[list[Group]]:
    """As many consecutive parts, of equal size but for one group."""
    edges = [len(groups) * i // count for i in range(count + 1)]
    return [list(groups[start:stop]) for start, stop in pairwise(edges)]


def share_out(groups: Sequence[Group], world_size: int) -> list[list[Group]]:
    """Whole groups to ranks, the largest first to the rank with the least work; within a rank in the order of `groups`."""
    load = [0] * world_size
    owner: dict[str, int] = {}
    for group in sorted(groups, key=lambda g: (-g.num_tokens, g.task)):
        rank = load.index(min(load))
        owner[group.task] = rank
        load[rank] += group.num_tokens
    return [[g for g in groups if owner[g.task] == rank] for rank in range(world_size)]
