"""Reading: from chosen groups to rows. Everything here can be done before it is certain that a step will take the groups.

    record data and dispatches ─▶ tree of each record, digest checked ─▶ one tree a group, its images ─▶ staleness, masks ─▶ rows
    └───────────────────────── does not depend on the step ──────────────────────────────────────┘

Only what settlement has written once is read: no mark, no claim, no staleness. So a group that was read ahead is the same group
when it is taken.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from shared.documents import DBRecordData
from shared.documents.expert_array import Experts
from shared.engine_mismatch import engine_number
from shared.errors import ConfigError, DataError
from shared.outside_text import error_text
from shared.rules.temperatures import temperature_problem
from shared.tokens.flatten import tree_of
from shared.tokens.record_tree import RecordTree
from shared.unforeseen import OF_THE_MACHINE, bug_of, is_of_the_process
from trainer.data.advantages import Gather, normalize
from trainer.data.groups import Group
from trainer.data.images import RecordImages, TowerImage, inputs_of
from trainer.process.store_bridge import StoreBridge
from trainer.settings.config import TrainerConfig
from trainer.settings.normalizations import AdvantageNormalization
from trainer.trees.experts import ModelBounds, check_routed
from trainer.trees.minibatch import Minibatch, count_entries
from trainer.trees.packing import Row, pack
from trainer.trees.staleness import Staleness
from trainer.trees.tree import Merging, TokenTree, merge


@dataclass(frozen=True, slots=True)
class LoadedGroup:
    """`tree` is None where advantages are not final yet. `images`: what the vision tower reads, by digest. `experts`: the
    arrays that the records name, by digest, until there is a tree."""

    data: list[DBRecordData]
    records: list[RecordTree]
    tree: TokenTree | None
    images: Mapping[str, TowerImage] = field(default_factory=dict)
    experts: Mapping[str, Experts] = field(default_factory=dict)

    @property
    def digests(self) -> Collection[str]:
        """Of the images that its rows may have."""
        if self.tree is None:
            return dict.fromkeys(span.sha256 for record in self.records for span in record.images)
        return () if self.tree.images is None else self.tree.images.digests


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of one update, ready to be computed. `tokens_too_old`: they would have a loss if they were younger."""

    minibatch: Minibatch
    trees: list[TokenTree]
    data: list[DBRecordData]
    tokens_too_old: int


@dataclass(slots=True)
class PrefetchBuffer:
    """What was read and not yet used, by task, and what was packed of it for `step`, by the tasks of each update.

    `unusable`: why a group cannot be trained, by task.
    """

    groups: dict[str, LoadedGroup] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)
    step: int = 0
    packed: dict[tuple[str, ...], Share] = field(default_factory=dict)

    def of(self, groups: Sequence[Group]) -> list[LoadedGroup]:
        return [self.groups[group.task] for group in groups]


MAX_LOGPROB = 1e-3  # rounding of an engine's softmax
NOT_OF_THE_DATA = (*OF_THE_MACHINE, ConfigError)  # the model reads no images at all, or Pillow is missing
FORESEEN = (DataError, ValueError, LookupError, TypeError, OverflowError)  # what spoilt documents lead to


class Reader:
    """`linear`, `short_rows`, `bounds`: see `RecordStream`."""

    def __init__(
        self, bridge: StoreBridge, config: TrainerConfig, *, linear: bool, short_rows: bool, bounds: ModelBounds
    ) -> None:
        self._bounds = bounds
        self._bridge = bridge
        self._config = config
        self._linear = linear
        self._short_rows = short_rows
        self._images = RecordImages(bridge, config.model.model_name_or_path, linear=linear)
        self.advantages_are_final = config.data.advantage_normalization == AdvantageNormalization.NONE

    def read(self, groups: Sequence[Group]) -> tuple[dict[str, LoadedGroup], dict[str, str]]:
        """{task: its group}, and {task: why it cannot be trained}, which names the record: a document or an image is spoilt or
        missing, or its tokens are not those it was settled with, or not the model's, or something raises what nobody expected of
        them. Raises ConfigError for images and a model of text."""
        try:
            return self._read(groups), {}
        except Exception as exc:  # a bug of one group's data; which one is found below
            if is_of_the_process(exc) or isinstance(exc, NOT_OF_THE_DATA):
                raise
            loaded: dict[str, LoadedGroup] = {}
            unusable: dict[str, str] = {}
        for group in groups:
            try:
                loaded |= self._read([group])
            except Exception as exc:  # whatever this group's data met: the others are trained
                if is_of_the_process(exc) or isinstance(exc, NOT_OF_THE_DATA):
                    raise
                unusable[group.task] = error_text(exc) if isinstance(exc, FORESEEN) else f"a bug: {bug_of(exc).error}"
        return loaded, unusable

    def _read(self, groups: Sequence[Group]) -> dict[str, LoadedGroup]:
        ids = [rid for group in groups for rid in group.records]
        stored = self._bridge(self._bridge.store.data.load(ids))
        tokens = self._bridge(self._bridge.store.records.tokens_of([d.record for d in stored]))
        data = {d.id: d for d in stored}
        trees = {d.id: tree_of(d, tokens[d.record]) for d in stored}
        for tree in trees.values():
            check_tokens(tree, self._bounds.vocab_size)
            check_temperatures(tree)
        loaded = {g.task: self._loaded([data[r] for r in g.records], [trees[r] for r in g.records]) for g in groups}
        return self._with_images(loaded) if any(tree.images for tree in trees.values()) else loaded

    def _loaded(self, data: list[DBRecordData], records: list[RecordTree]) -> LoadedGroup:
        experts = self._experts(records)
        if self.advantages_are_final:
            return LoadedGroup(data, records, self._merged(records, experts))
        return LoadedGroup(data, records, None, experts=experts)

    def _experts(self, records: Sequence[RecordTree]) -> dict[str, Experts]:
        """{digest: array} of those that the records name."""
        stored = {record.record_id: [span.stored for span in record.experts] for record in records if record.experts}
        if not stored:
            return {}
        arrays = self._bridge(self._bridge.store.routed_experts.read([one for of in stored.values() for one in of]))
        if self._bounds.routers is not None:
            for record_id, of_record in stored.items():
                check_routed(record_id, [arrays[one.sha256] for one in of_record], self._bounds.routers)
        return arrays

    def _with_images(self, groups: Mapping[str, LoadedGroup]) -> dict[str, LoadedGroup]:
        """Of records that advantages leave out, images are not read."""
        digests_of = {task: group.digests for task, group in groups.items()}
        records = [record for group in groups.values() for record in group.records]
        images = self._images.of(records, dict.fromkeys(d for digests in digests_of.values() for d in digests))
        return {
            task: replace(group, images={digest: images[digest] for digest in digests_of[task]})
            for task, group in groups.items()
        }

    def _merged(self, records: Sequence[RecordTree], experts: Mapping[str, Experts]) -> TokenTree:
        """Of one group, whose advantages are final."""
        return merge(
            records,
            drop_zero_advantage=self._config.data.drop_zero_advantage,
            minimal_advantage=self._config.data.minimal_advantage,
            skip_non_positive_advantage=self._config.data.skip_non_positive_advantage,
            merging=Merging.LINEAR if self._linear else Merging.TREE,
            experts=experts,
        )

    def shares(
        self, updates: Sequence[Sequence[Group]], staleness: Staleness, buffer: PrefetchBuffer, gather: Gather
    ) -> tuple[list[Share], dict[str, float]]:
        """This rank's share of each update of a step, and what its advantages were normalized by. Every rank must call it."""
        if self.advantages_are_final:
            return [buffer.packed.get(tasks_of(u)) or self.share(buffer.of(u), staleness) for u in updates], {}
        groups = buffer.of([group for update in updates for group in update])
        records, metrics = normalize(
            [d for group in groups for d in group.data],
            [record for group in groups for record in group.records],
            self._config.data.advantage_normalization,
            gather,
        )
        rest = iter(records)
        final = [[next(rest) for _ in group.records] for group in groups]
        changed = iter(
            replace(g, records=own, tree=self._merged(own, g.experts), experts={})
            for g, own in zip(groups, final, strict=True)
        )
        return [self.share([next(changed) for _ in update], staleness) for update in updates], metrics

    def share(self, groups: Sequence[LoadedGroup], staleness: Staleness) -> Share:
        """Groups with their trees as the rows of one update, at the staleness of one step."""
        merged = [group.tree for group in groups if group.tree is not None]
        assert len(merged) == len(groups), "a share is made of merged groups"
        trees = [tree.at(staleness) for tree in merged]
        too_old = sum(len(tree.entries) for tree in merged) - sum(len(tree.entries) for tree in trees)
        rows: list[Row] = pack(
            trees,
            self._config.data.max_tokens_per_row,
            one_sequence_per_row=self._linear,
            every_token=self._config.loss.router_aux_loss_coef > 0,
            short_rows=self._short_rows,
        )
        if any(row.images is not None for row in rows):
            pixels = partial(inputs_of, {d: image for group in groups for d, image in group.images.items()})
            rows = [row.with_pixels(pixels, on_demand=True) for row in rows]
        data = [d for group in groups for d in group.data]
        minibatch = Minibatch(
            rows,
            count_entries(trees),
            [d.source for d in data],
            [d.record for d in data],
            _engines_of([record for group in groups for record in group.records]),
        )
        return Share(minibatch, trees, data, too_old)


def _engines_of(records: Sequence[RecordTree]) -> dict[int, str]:
    """{number: URL}"""
    urls = {url for record in records for dispatch in record.dispatches for url, _ in dispatch.engines}
    return {engine_number(url): url for url in urls}


def check_tokens(tree: RecordTree, vocab_size: int | None) -> None:
    """Raises DataError for an id outside of the vocabulary, a log-prob that is none, and a temperature that divides by zero."""
    most = np.inf if vocab_size is None else vocab_size
    ids_N, logprobs_N = tree.token_ids_N, tree.logprobs_N
    outside = np.flatnonzero((ids_N < 0) | (ids_N >= most))
    if len(outside):
        raise DataError(
            f"record {tree.record_id}: token {outside[0]} has id {ids_N[outside[0]]}; expected 0 to {most - 1:.0f}, the model's "
            "vocabulary"
        )
    wrong = np.flatnonzero(~(logprobs_N <= MAX_LOGPROB) | np.isinf(logprobs_N))
    if len(wrong):
        raise DataError(
            f"record {tree.record_id}: token {wrong[0]} has log-prob {logprobs_N[wrong[0]]}; expected a finite number, "
            "at most 0"
        )


def check_temperatures(tree: RecordTree) -> None:
    """Raises DataError for a trained reply at a temperature that nothing can be trained at."""
    for dispatch in tree.dispatches:
        if dispatch.trained and (problem := temperature_problem(dispatch.temperature)) is not None:
            raise DataError(f"record {tree.record_id}, turn {dispatch.turn}: {problem}")


def tasks_of(groups: Sequence[Group]) -> tuple[str, ...]:
    return tuple(group.task for group in groups)
