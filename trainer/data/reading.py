"""Reading: from chosen groups to rows. Everything here can be done before it is certain that a step will take the groups.

    record data and dispatches ─▶ tree of each record, digest checked ─▶ one tree a group ─▶ ages, masks ─▶ rows
    └─────────────────── does not depend on the step ─────────────────────────────────┘

Only what settlement has written once is read: no mark, no claim, no age. So a group that was read ahead is the same group when
it is taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from shared.documents import DBRecordData
from shared.flatten import tree_of
from shared.trees import RecordTree
from trainer.accumulate import Minibatch
from trainer.bridge import StoreBridge
from trainer.config import TrainerConfig
from trainer.data.advantages import AdvantageNormalization
from trainer.data.groups import Group
from trainer.losses import Denominators
from trainer.trees.ages import Ages
from trainer.trees.packing import Row, pack
from trainer.trees.tree import Merging, TokenTree, merge


@dataclass(frozen=True, slots=True)
class LoadedGroup:
    """`versions`: distinct ones that sampled a trained token. `tree` is None where advantages are not final yet."""

    data: list[DBRecordData]
    records: list[RecordTree]
    versions: list[int]
    tree: TokenTree | None


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of one update, ready to be computed; `ages` of its groups."""

    minibatch: Minibatch
    trees: list[TokenTree]
    data: list[DBRecordData]
    ages: list[int]


@dataclass(slots=True)
class Shelf:
    """What was read and not yet used, by task, and what was packed of it for `step`, by the tasks of each update."""

    groups: dict[str, LoadedGroup] = field(default_factory=dict)
    step: int = 0
    packed: dict[tuple[str, ...], Share] = field(default_factory=dict)


class Reader:
    """`linear`: see `RecordStream`."""

    def __init__(self, bridge: StoreBridge, config: TrainerConfig, *, linear: bool) -> None:
        self._bridge = bridge
        self._config = config
        self._linear = linear
        self.advantages_are_final = config.advantage_normalization is AdvantageNormalization.NONE

    def read(self, groups: Sequence[Group]) -> dict[str, LoadedGroup]:
        """{task: its group}. Raises DataError where a record's tokens are not those it was settled with."""
        ids = [rid for group in groups for rid in group.records]
        stored = self._bridge(self._bridge.store.data.load(ids))
        tokens = self._bridge(self._bridge.store.records.tokens_of([d.record for d in stored]))
        data = {d.id: d for d in stored}
        trees = {d.id: tree_of(d, tokens[d.record]) for d in stored}
        return {g.task: self._loaded([data[r] for r in g.records], [trees[r] for r in g.records]) for g in groups}

    def _loaded(self, data: list[DBRecordData], records: list[RecordTree]) -> LoadedGroup:
        tree = self.merged(records) if self.advantages_are_final else None
        return LoadedGroup(data, records, _versions(records), tree)

    def merged(self, records: Sequence[RecordTree]) -> TokenTree:
        """Of one group, whose advantages are final."""
        return merge(
            records,
            drop_zero_advantage=self._config.drop_zero_advantage,
            minimal_advantage=self._config.minimal_advantage,
            skip_non_positive_advantage=self._config.skip_non_positive_advantage,
            merging=Merging.LINEAR if self._linear else Merging.TREE,
        )

    def share(self, groups: Sequence[LoadedGroup], ages: Ages) -> Share:
        """Groups with their trees as the rows of one update, at the ages of one step."""
        own_ages = [ages.of_group(group.versions) for group in groups]
        trees = [g.tree.at(ages, age) for g, age in zip(groups, own_ages, strict=True) if g.tree is not None]
        assert len(trees) == len(groups), "a share is made of merged groups"
        rows: list[Row] = pack(
            trees,
            self._config.max_tokens_per_row,
            one_sequence_per_row=self._linear,
            every_token=self._config.router_aux_loss_coef > 0,
        )
        data = [d for group in groups for d in group.data]
        minibatch = Minibatch(rows, _denominators(trees), [d.source for d in data])
        return Share(minibatch, trees, data, own_ages)


def _denominators(trees: Sequence[TokenTree]) -> Denominators:
    none = [np.zeros(0, dtype=np.int64)]
    tokens_T = np.concatenate(none + [tree.trained_tokens_T for tree in trees])
    entries_T = np.concatenate(none + [tree.entries_T for tree in trees])
    return Denominators.count(torch.from_numpy(tokens_T), torch.from_numpy(entries_T))


def _versions(records: Sequence[RecordTree]) -> list[int]:
    found: set[int] = set()
    for record in records:
        versions_N = record.versions_N[record.trained_N]
        changes = np.flatnonzero(np.diff(versions_N, prepend=-1))
        found.update(versions_N[changes].tolist())
    return sorted(found)


def tasks_of(groups: Sequence[Group]) -> tuple[str, ...]:
    return tuple(group.task for group in groups)


def loaded_of(groups: Sequence[Group], shelf: Mapping[str, LoadedGroup]) -> list[LoadedGroup]:
    return [shelf[group.task] for group in groups]
