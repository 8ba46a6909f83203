"""Choosing: which groups a step trains on, oldest first, and which rank has which.

    ready groups, oldest first ─▶ too old? set aside, kept, counted ─▶ borrow ─▶ parts, one an update ─▶ shares, one a rank

Groups are whole everywhere: borrowed, shared out and marked together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from shared.documents import DataClaim
from shared.errors import LeaseLost
from shared.run_documents import PolicyVersion
from shared.states import DataStatus
from trainer.bridge import StoreBridge
from trainer.config import TrainerConfig
from trainer.data.cost import group_cost
from trainer.trees.ages import Ages, StaleData


@dataclass(frozen=True, slots=True)
class Group:
    """One task's records."""

    task: str
    records: tuple[str, ...]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Choice:
    """Groups for one step, and how old what they hold is at its start."""

    groups: list[Group]
    ages: Ages


@dataclass(frozen=True, slots=True)
class Candidates:
    """What a step could take now, oldest first, and what is too old for it: (records, reason) of each group."""

    fresh: list[Group]
    stale: list[tuple[Group, str]]
    ages: Ages


class Chooser:
    """Looks and borrows. It remembers the versions it has read: one for each thread."""

    def __init__(self, bridge: StoreBridge, config: TrainerConfig) -> None:
        self._bridge = bridge
        self._store = bridge.store
        self._config = config
        self._versions: dict[int, PolicyVersion] = {}

    def candidates(self, step: int) -> Candidates:
        """Changes nothing."""
        rows = self._bridge(
            self._store.data.ready_groups(
                self._config.policy,
                4 * self._config.groups_per_step,
                trained_until=step - self._config.retrained_interval,
                least_trained_first=self._config.data_run is not None,
            )
        )
        ages = self._ages(rows, step)
        fresh: list[Group] = []
        stale: list[tuple[Group, str]] = []
        for row in rows:
            group = Group(row["_id"], tuple(sorted(row["records"])), row["num_tokens"])
            behind = self._too_old(row, ages)
            if behind is None:
                fresh.append(group)
            else:
                stale.append((group, f"{behind} steps behind step {step}; at most {self._config.max_staleness}"))
        return Candidates(fresh, stale, ages)

    def _ages(self, rows: Sequence[dict[str, Any]], step: int) -> Ages:
        if self._config.data_run is not None:
            return Ages(None)
        newest = max((version for row in rows for version in row["versions"]), default=-1)
        if newest not in self._versions and newest >= 0:
            self._versions = {v.version: v for v in self._bridge(self._store.versions.all(self._config.policy))}
        lags = {version: known.lag(step - 1) for version, known in self._versions.items()}
        return Ages(lags, self._config.max_staleness if self._config.stale_data is StaleData.MASK else None)

    def _too_old(self, row: dict[str, Any], ages: Ages) -> int | None:
        """Steps that a group which may not be trained lies behind; None for one that may. Without a loss it has no age.

        Of the versions that a resume withdrew the last are the farthest away: so the oldest may be any of the group's.
        """
        versions = row["versions"]
        if not versions or ages.lags is None or self._config.stale_data is StaleData.KEEP:
            return None
        oldest = max(map(ages.of, versions))
        if self._config.stale_data is StaleData.MASK:  # something in it must be young enough
            return oldest if min(map(ages.of, versions)) > self._config.max_staleness else None
        return oldest if oldest > self._config.max_staleness else None

    def borrow(self, groups: Sequence[Group], incarnation: int, step: int) -> None:
        """Raises LeaseLost when another trainer of this policy has started."""
        ids = [rid for group in groups for rid in group.records]
        self.check_current(incarnation)
        borrowed = self._bridge(self._store.data.claim(ids, DataClaim(incarnation=incarnation, step=step)))
        if borrowed != len(ids):
            raise LeaseLost(f"step {step}: borrowed {borrowed} of {len(ids)} records; another trainer takes from them")

    def check_current(self, incarnation: int) -> None:
        if not self._bridge(self._store.runs.is_current_trainer(self._config.policy, incarnation)):
            raise LeaseLost(f"policy {self._config.policy}: another trainer has started; this one ends")

    def set_aside(self, group: Group, reason: str) -> None:
        self._bridge(self._store.data.set_aside(group.records, DataStatus.STALE, reason))


def shares_of(groups: Sequence[Group], updates: int, rank: int, world_size: int) -> list[list[Group]]:
    """For each update of a step, the groups of this rank."""
    return [share_out(part, world_size)[rank] for part in in_parts(groups, updates)]


def in_parts(groups: Sequence[Group], count: int) -> list[list[Group]]:
    """As many consecutive parts, of equal size but for one group."""
    edges = [len(groups) * i // count for i in range(count + 1)]
    return [list(groups[start:stop]) for start, stop in pairwise(edges)]


def share_out(groups: Sequence[Group], world_size: int) -> list[list[Group]]:
    """Whole groups to ranks, the costliest first to the rank with the least work; within a rank in the order of `groups`."""
    load = [0.0] * world_size
    owner: dict[str, int] = {}
    for group in sorted(groups, key=lambda g: (-group_cost(g.num_tokens, len(g.records)), g.task)):
        rank = load.index(min(load))
        owner[group.task] = rank
        load[rank] += group_cost(group.num_tokens, len(group.records))
    return [[g for g in groups if owner[g.task] == rank] for rank in range(world_size)]
