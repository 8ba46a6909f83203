"""Packing: trees of any size become rows of at most `max_tokens` tokens, each one forward.

The promises: every entry of every tree is in exactly one row; its row holds all the token's ancestors; so the sum of
the rows' losses is the loss of the step, for any budget. A token that is computed again counts in one row alone.
Trees side by side in a row do not see each other: a forest has the same mask rule as a tree. A tree over the budget is
cut between leaves, and the ancestors of a cut are computed again as context.

    suffix _N  token of the row
           _E  entry: (trajectory, trained token)
           _U  distinct (token, temperature, truncation): one log-prob each
"""

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shared.tokens.trie import Int64
from trainer.losses.entries import TrainedTokens
from trainer.trees.experts import RowExperts, TreeExperts, experts_of_row
from trainer.trees.images import Pixels, RowImages, TreeImages, images_of_row, with_pixels
from trainer.trees.tree import NOT_TRUNCATED, Entries, Float32, TokenTree, concatenate

log = logging.getLogger(__name__)

SHORT_ROW = 512  # tokens; below, what a forward takes beside its tokens would show on a CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(TrainedTokens):
    """One forward: a forest of tokens in depth-first pre-order, and what is trained on it. All tensors on one device.

    `trajectory_E` numbers the trajectories of all `trees` given to `pack`, one tree after the other.
    """

    ids_N: Tensor
    parents_N: Tensor
    positions_N: Tensor
    ends_N: Tensor
    copies_N: Tensor  # as in `TokenTree`; 0 for padding, and for ancestors that an earlier row counts
    node_U: Tensor  # the predicted token; its predictor is parents_N[node_U]
    temperature_U: Tensor
    truncation_U: Tensor  # [U, 3] as in `Entries`, or [0, 3]: no token was drawn from a truncated distribution
    edge_E: Tensor  # which of the _U log-probs an entry reads
    images: RowImages | None = None
    experts: RowExperts | None = None  # that the engine chose: routers repeat them

    @property
    def num_tokens(self) -> int:
        return len(self.ids_N)

    @property
    def num_entries(self) -> int:
        return len(self.edge_E)

    @property
    def truncated_E(self) -> Tensor:
        """Whether the token was drawn from a truncated distribution."""
        if not len(self.truncation_U):
            return torch.zeros_like(self.edge_E, dtype=torch.bool)
        return (self.truncation_U != self.truncation_U.new_tensor(NOT_TRUNCATED)).any(-1)[self.edge_E]

    @property
    def node_E(self) -> Tensor:
        return self.node_U[self.edge_E]

    def without_entries(self) -> "Row":
        """The same tokens with nothing to train."""
        empty = {name: column[:0] for name, column in self.columns().items() if name.endswith(("_U", "_E"))}
        return dataclasses.replace(self, **empty)

    def to(self, device: torch.device | str) -> "Row":
        """The same row on another device."""
        columns = {name: column for name, column in self.columns().items() if column is not None}
        return Row(**{name: column.to(device, non_blocking=True) for name, column in columns.items()})

    def without_experts(self) -> "Row":
        """The same row, in which every router chooses by itself."""
        return dataclasses.replace(self, experts=None)

    def with_pixels(self, pixels: Pixels, *, on_demand: bool = False) -> "Row":
        """The same row with what the vision tower reads of its images, now or when it is computed."""
        if self.images is None:
            return self
        return dataclasses.replace(self, images=with_pixels(self.images, pixels, on_demand=on_demand))

    def padded(self, multiple: int) -> "Row":
        """With tokens appended up to a multiple of `multiple`, which continue the last sequence: nothing sees or reads them.

        The ancestors of the last token, and it itself, are those whose subtree ends with the row; so one sequence stays one.
        """
        n = self.num_tokens
        extra = -n % multiple
        if extra == 0:
            return self
        places = torch.arange(extra, device=self.ids_N.device)
        ends_N = torch.where(self.ends_N == n, n + extra, self.ends_N)
        return dataclasses.replace(
            self,
            ids_N=torch.cat([self.ids_N, torch.zeros_like(places)]),
            parents_N=torch.cat([self.parents_N, places + (n - 1)]),
            positions_N=torch.cat([self.positions_N, places + self.positions_N[-1] + 1]),
            ends_N=torch.cat([ends_N, torch.full_like(places, n + extra)]),
            copies_N=torch.cat([self.copies_N, torch.zeros_like(places)]),
            images=None if self.images is None else self.images.padded(extra),
            experts=None if self.experts is None else self.experts.padded(extra),
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """A tree, or a piece of one, that goes into a row whole."""

    ids_N: Int64
    parents_N: Int64
    positions_N: Int64
    ends_N: Int64
    copies_N: Int64
    entries: Entries
    images: TreeImages | None = None
    experts: TreeExperts | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.ids_N)


def pack(
    trees: Sequence[TokenTree],
    max_tokens: int,
    *,
    one_sequence_per_row: bool = False,
    every_token: bool = False,
    short_rows: bool = False,
) -> list[Row]:
    """Rows of at most `max_tokens` tokens, first-fit decreasing. Only a single root-to-leaf path above it makes a
    longer row. `one_sequence_per_row`: each path gets a row of its own, for models that take no trees.

    `short_rows`: no row is longer than the longest tree, or piece of one, or SHORT_ROW. As many tokens, in more forwards, and a
    step holds the activations of a shorter row.

    Trees, and pieces of trees, without anything to train are left out, so the list may be empty; with `every_token` only those
    without a token that counts. The order is a function of the arguments alone.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}; expected at least 1")
    if one_sequence_per_row:
        return [_row([part]) for tree in _numbered(trees) for part in _paths(tree) if _matters(part, every_token)]
    parts = [part for tree in _numbered(trees) for part in _split(tree, max_tokens) if _matters(part, every_token)]
    if short_rows:
        max_tokens = min(max_tokens, max([SHORT_ROW, *(part.num_tokens for part in parts)]))
    bins: list[list[_Part]] = []
    room: list[int] = []
    for part in sorted(parts, key=lambda part: -part.num_tokens):
        target = next((b for b, free in enumerate(room) if free >= part.num_tokens), None)
        if target is None:
            bins.append([])
            room.append(max_tokens)
            target = len(bins) - 1
        bins[target].append(part)
        room[target] -= part.num_tokens
    return [_row(bin_) for bin_ in bins]


def empty_row() -> Row:
    """One token and nothing to train: for a rank that must run a forward and backward because the others do. Its loss
    is 0.
    """
    one, minus_one, none = np.ones(1, np.int64), np.full(1, -1, np.int64), concatenate([])
    return _row([_Part(one - 1, minus_one, one - 1, one, one - 1, none)])


def _matters(part: _Part, every_token: bool) -> bool:
    return len(part.entries) > 0 or (every_token and bool(part.copies_N.any()))


def _numbered(trees: Sequence[TokenTree]) -> Iterator[_Part]:
    """The trees with their trajectories numbered through."""
    trajectories = 0
    for tree in trees:
        entries = dataclasses.replace(tree.entries, trajectory_E=tree.entries.trajectory_E + trajectories)
        arrays = (tree.ids_N, tree.parents_N, tree.positions_N, tree.ends_N, tree.copies_N)
        yield _Part(*arrays, entries, tree.images, tree.experts)
        trajectories += tree.num_trajectories


def _split(tree: _Part, max_tokens: int) -> Iterator[_Part]:
    """Consecutive leaves, as many as fit. A piece owns the entries of the tokens that no earlier piece has.

    In pre-order the tokens between two consecutive leaves all lie on the path to the second, so the leaves a … b
    together need the ancestors of a, and the tokens a … b.
    """
    if tree.num_tokens <= max_tokens:
        yield tree
        return
    leaves = np.flatnonzero(tree.ends_N == np.arange(tree.num_tokens) + 1)
    first, owned_from = 0, 0
    while first < len(leaves):
        start = int(leaves[first])
        path_length = int(tree.positions_N[start]) + 1
        last = int(np.searchsorted(leaves, start + max_tokens - path_length, side="right")) - 1
        if last < first:
            log.warning(
                "one sequence of %d tokens is longer than max_tokens=%d: it gets a row of its own",
                path_length,
                max_tokens,
            )
            last = first
        stop = int(leaves[last]) + 1
        yield _piece(tree, np.concatenate([_ancestors(tree, start), np.arange(start, stop)]), owned_from)
        first, owned_from = last + 1, stop


def _paths(tree: _Part) -> Iterator[_Part]:
    """One piece per leaf, each with the entries that no earlier one has."""
    owned_from = 0
    for leaf in np.flatnonzero(tree.ends_N == np.arange(tree.num_tokens) + 1).tolist():
        yield _piece(tree, np.append(_ancestors(tree, leaf), leaf), owned_from)
        owned_from = leaf + 1


def _ancestors(tree: _Part, node: int) -> Int64:
    """Of `node`, without itself, the root first: those whose subtree holds it."""
    return np.flatnonzero(tree.ends_N[:node] > node)


def _piece(tree: _Part, nodes: Int64, owned_from: int) -> _Part:
    """The tree of only `nodes` (ascending, closed under parents), with the entries of those at or after `owned_from`."""
    parents = tree.parents_N[nodes]
    owned_E = (tree.entries.node_E >= owned_from) & (tree.entries.node_E <= nodes[-1])
    entries = tree.entries.take(owned_E)
    return _Part(
        ids_N=tree.ids_N[nodes],
        parents_N=np.where(parents < 0, -1, np.searchsorted(nodes, parents)),
        positions_N=tree.positions_N[nodes],
        ends_N=np.searchsorted(nodes, tree.ends_N[nodes]),
        copies_N=np.where(nodes >= owned_from, tree.copies_N[nodes], 0),
        entries=dataclasses.replace(entries, node_E=np.searchsorted(nodes, entries.node_E)),
        images=None if tree.images is None else tree.images.take(nodes),
        experts=None if tree.experts is None else tree.experts.take(nodes),
    )


def _row(parts: Sequence[_Part]) -> Row:
    offsets = np.cumsum([0, *(part.num_tokens for part in parts)])
    placed = list(zip(parts, offsets.tolist(), strict=False))
    entries = concatenate(
        [dataclasses.replace(part.entries, node_E=part.entries.node_E + offset) for part, offset in placed]
    )
    node_U, temperature_U, truncation_U, edge_E = _edges(entries)
    arrays = {
        "ids_N": np.concatenate([part.ids_N for part in parts]),
        "parents_N": np.concatenate([np.where(p.parents_N < 0, -1, p.parents_N + offset) for p, offset in placed]),
        "positions_N": np.concatenate([part.positions_N for part in parts]),
        "ends_N": np.concatenate([part.ends_N + offset for part, offset in placed]),
        "copies_N": np.concatenate([part.copies_N for part in parts]),
        "node_U": node_U,
        "temperature_U": temperature_U,
        "truncation_U": truncation_U,
        "edge_E": edge_E,
    }
    arrays |= {field.name: getattr(entries, field.name) for field in dataclasses.fields(TrainedTokens)}
    images = images_of_row([(part.images, part.positions_N) for part in parts])
    experts = experts_of_row([(part.experts, part.num_tokens) for part in parts])
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    return Row(**tensors, images=images, experts=experts)


def _edges(entries: Entries) -> tuple[Int64, Float32, Float32, Int64]:
    """The distinct (node, temperature, truncation), by node, and which of them each entry is."""
    is_truncated = bool((entries.truncation_E != NOT_TRUNCATED).any())
    if is_truncated:
        columns_E = np.column_stack([entries.temperature_E, entries.truncation_E])
        kind_E = np.zeros(len(entries), dtype=np.int64)
        for column_E in columns_E.T:  # by columns: ten times as fast as by rows
            values, value_E = np.unique(column_E, return_inverse=True)
            kind_E = kind_E * len(values) + value_E
        _, first, kind_E = np.unique(kind_E, return_index=True, return_inverse=True)
        distributions = columns_E[first]
    else:
        temperatures, kind_E = np.unique(entries.temperature_E, return_inverse=True)
        distributions = np.column_stack([temperatures, np.empty((len(temperatures), 3), dtype=np.float32)])
    kinds = max(len(distributions), 1)
    keys_U, edge_E = np.unique(entries.node_E * kinds + kind_E, return_inverse=True)
    chosen_U = distributions[keys_U % kinds]
    return keys_U // kinds, chosen_U[:, 0], chosen_U[:, 1:] if is_truncated else chosen_U[:0, 1:], edge_E
