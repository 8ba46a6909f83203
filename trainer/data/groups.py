"""Choosing: which groups a step trains on, oldest first, and which rank has which.

    ready groups, oldest first ─▶ what the freshness rule says ─▶ borrow ─▶ parts, one an update ─▶ shares, one a rank
                                  keep, mask: take · wait: not before an older one that is still played · drop: set aside

Groups are whole everywhere: borrowed, shared out and marked together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from shared.documents import DataClaim
from shared.documents.run import PolicyVersion
from shared.documents.states import DataStatus
from shared.errors import LeaseLost
from shared.names import TRAIN_SPLIT
from trainer.data.group_cost import group_cost
from trainer.process.store_bridge import StoreBridge
from trainer.settings.config import TrainerConfig
from trainer.settings.data import StaleData
from trainer.trees.staleness import Staleness


@dataclass(frozen=True, slots=True)
class Group:
    """One task's records. `num_sampled` tokens of it the engine sampled; `duration_s` is the sum of the episodes'."""

    task: str
    records: tuple[str, ...]
    num_tokens: int
    num_sampled: int = 0
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GroupSelection:
    """Groups for one step, and how old what they hold is at its start."""

    groups: list[Group]
    staleness: Staleness


@dataclass(frozen=True, slots=True)
class Candidates:
    """What a step could take now, oldest first, and what is too old for it: (records, reason) of each group."""

    fresh: list[Group]
    stale: list[tuple[Group, str]]
    staleness: Staleness


class GroupSelector:
    """Looks and borrows. It remembers the versions it has read: one for each thread."""

    def __init__(self, bridge: StoreBridge, config: TrainerConfig) -> None:
        self._bridge = bridge
        self._store = bridge.store
        self._config = config
        self._versions: dict[int, PolicyVersion] = {}

    def candidates(self, step: int) -> Candidates:
        """Changes nothing."""
        unended = self._unended()  # asked first: what ends after that is ready when the groups are asked for
        rows = self._bridge(
            self._store.data.ready_groups(
                self._config.policy,
                4 * self._config.data.groups_per_step,
                trained_until=step - self._config.data.retrained_interval,
                least_trained_first=self._config.data.offline is not None,
            )
        )
        staleness = self._staleness(rows, step)
        fresh: list[Group] = []
        stale: list[tuple[Group, str]] = []
        for row in [row for row in rows if not _waits(row, unended)]:
            group = Group(
                row["_id"],
                tuple(sorted(row["records"])),
                row["num_tokens"],
                row["num_trained_tokens"],
                row["duration_s"],
            )
            behind = self._too_stale(row, staleness)
            if behind is None:
                fresh.append(group)
            else:
                stale.append((group, f"{behind} steps behind step {step}; at most {self._config.data.max_staleness}"))
        return Candidates(fresh, stale, staleness)

    def _unended(self) -> dict[str, int]:
        """{policy: first of its tasks that a group behind it waits for}; nothing where nothing waits."""
        if self._config.data.stale_data is not StaleData.WAIT or self._config.data.offline is not None:
            return {}
        return self._bridge(self._store.tasks.first_unended(TRAIN_SPLIT))

    def _staleness(self, rows: Sequence[dict[str, Any]], step: int) -> Staleness:
        if self._config.data.offline is not None:
            return Staleness(None)
        new = {version for row in rows for version in row["versions"]} - self._versions.keys()
        if new:
            self._versions |= self._bridge(self._store.versions.some(self._config.policy, new))
        steps_behind = {version: known.staleness(step - 1) for version, known in self._versions.items()}
        return Staleness(
            steps_behind, self._config.data.max_staleness if self._config.data.stale_data is StaleData.MASK else None
        )

    def _too_stale(self, row: dict[str, Any], staleness: Staleness) -> int | None:
        """Steps that a group which may not be trained lies behind; None for one that may. Without a loss it has no staleness.

        Of the versions that a resume withdrew the last are the farthest away: so the oldest may be any of the group's.
        """
        versions = row["versions"]
        if (
            not versions
            or staleness.steps_behind is None
            or self._config.data.stale_data not in (StaleData.MASK, StaleData.DROP)
        ):
            return None
        oldest = max(map(staleness.of, versions))
        if self._config.data.stale_data is StaleData.MASK:  # something in it must be young enough
            return oldest if min(map(staleness.of, versions)) > self._config.data.max_staleness else None
        return oldest if oldest > self._config.data.max_staleness else None

    def borrow(self, groups: Sequence[Group], trainer_generation: int, step: int) -> None:
        """Raises LeaseLost when another trainer of this policy has started: before this borrows, or while it does.

        So the question comes after: what is borrowed once another start gave everything back is given back here, or, where this
        trainer dies in between, by `free_earlier` of the other one.
        """
        ids = [rid for group in groups for rid in group.records]
        claim = DataClaim(trainer_generation=trainer_generation, step=step)
        self.free_earlier(trainer_generation)
        borrowed = self._bridge(self._store.data.claim(ids, claim))
        try:
            self.check_current(trainer_generation)
        except LeaseLost:
            self._bridge(self._store.data.give_back(self._config.policy, claim))
            raise
        if borrowed != len(ids):
            raise LeaseLost(f"step {step}: borrowed {borrowed} of {len(ids)} records; another trainer takes from them")

    def give_back(self, trainer_generation: int, step: int) -> None:
        """What was borrowed for a step that does not begin."""
        self._bridge(
            self._store.data.give_back(self._config.policy, DataClaim(trainer_generation=trainer_generation, step=step))
        )

    def free_earlier(self, trainer_generation: int) -> None:
        """What earlier starts borrow is free, also where they did so after this start."""
        self._bridge(self._store.data.release_claims(self._config.policy, trainer_generation))

    def check_current(self, trainer_generation: int) -> None:
        if not self._bridge(self._store.runs.is_current_trainer(self._config.policy, trainer_generation)):
            raise LeaseLost(f"policy {self._config.policy}: another trainer has started; this one ends")

    def drop(self, group: Group, reason: str, trainer_generation: int, step: int) -> None:
        """A borrowed group that cannot be trained. It stays, with its reason; a resume does not look at it again."""
        claim = DataClaim(trainer_generation=trainer_generation, step=step)
        self._bridge(self._store.data.set_aside(group.records, DataStatus.DROPPED, reason, borrowed=claim))

    def set_aside(self, group: Group, reason: str) -> None:
        self._bridge(self._store.data.set_aside(group.records, DataStatus.STALE, reason))


def _waits(row: dict[str, Any], unended: Mapping[str, int]) -> bool:
    """For a task that was opened before its own, in the order of the same policy."""
    return any(seq < row["seq"] and row["_id"].startswith(f"{owner}:{TRAIN_SPLIT}:") for owner, seq in unended.items())


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
