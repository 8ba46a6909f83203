"""Merging: the records of one group become one prefix tree, in which every distinct token stands once.

The promise: a forward over the tree gives, at every node, what a forward of the root-to-node sequence alone would
give, if positions are depths and the mask is "j sees i iff j <= i < ends[j]". Numpy only; nothing here knows about a
model.

    record A  [sys q a0 x a1]     index      0    1  2   3  4   5  6     suffix _N  tree node (token)
    record B  [sys q a0 y]        ids_N      sys  q  a0  x  a1  y  c0           _E  entry: (trajectory, trained token)
    record C  [sys q c0]          parents_N  -1   0  1   2  3   2  1            _T  trajectory (record)
                                  ends_N     7    7  6   5  5   6  7

A record's token is trained once, however many of the record's branches run through it: it is one draw. Two records that
independently sampled the same token give two entries on one node: they are two draws.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from shared.documents.expert_array import Experts
from shared.engine_mismatch import engine_number
from shared.tokens.merging import LossRules, insert_all, sequence_counts, sequence_ends
from shared.tokens.record_tree import RecordTree
from shared.tokens.trie import Int32, Int64, TreeLayout
from shared.truncation import WHOLE, Truncation
from trainer.trees.experts import TreeExperts, experts_of_tree
from trainer.trees.images import TreeImages, images_of_tree
from trainer.trees.staleness import Staleness

Bool = npt.NDArray[np.bool_]
Float32 = npt.NDArray[np.float32]


def _columns_of(truncation: Truncation) -> tuple[float, float, float]:
    return truncation.top_p, truncation.top_k, truncation.min_p


NOT_TRUNCATED = _columns_of(WHOLE)


class Merging(StrEnum):
    TREE = "tree"  # one prefix tree: every distinct prefix once
    LINEAR = "linear"  # one chain per root-to-leaf path: requests that continue each other exactly are one sequence
    NONE = "none"  # one chain per request to the engine


@dataclass(frozen=True, slots=True)
class Entries:
    """What is trained: one entry per (trajectory, trained token), the same length everywhere."""

    node_E: Int64  # the tree node that is this token; it is predicted by the node's parent
    old_logprob_E: Float32  # of the sampler, in the distribution that it drew the token from
    advantage_E: Float32
    temperature_E: Float32
    truncation_E: (
        Float32  # [E, 3]: top_p, top_k, min_p of `Truncation`; exact, for a vocabulary has fewer than 2**24 tokens
    )
    trajectory_E: Int64  # index of the record in the group (in a Row: in the optimizer step of this rank)
    turn_E: Int64
    staleness_E: Float32  # in steps, of the token's own version
    version_E: Int64  # weights that sampled the token
    engine_E: Int64  # `shared.engine_mismatch.engine_number` of the engine that sampled it

    def __len__(self) -> int:
        return len(self.node_E)

    def take(self, index: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> "Entries":
        """The entries at `index`, in that order."""
        return Entries(*(getattr(self, name)[index] for name in self.__dataclass_fields__))


@dataclass(frozen=True, slots=True)
class TokenTree:
    """The merged tree of a group, in depth-first pre-order; see the module's picture. It may be a forest, or empty.

    Records left out by their advantages are absent from the nodes, the entries and the three counts of tokens below, so that
    these compare; they are present in `record_ids` and `trained_tokens_T`, so that denominators do not change. So are tokens
    that have no entry although they are in the tree.

    `num_flat`, `num_linear`: `shared.tokens.merging`. `num_tree`: tokens of this tree, or with another `Merging` of its chains.
    """

    ids_N: Int64
    parents_N: Int64
    positions_N: Int64
    ends_N: Int64
    copies_N: Int64  # of how many records' tokens this is the place; 0 where a chain repeats what an earlier one has
    entries: Entries
    record_ids: tuple[str, ...]
    trained_tokens_T: Int64
    num_flat: int
    num_linear: int
    images: TreeImages | None = None
    experts: TreeExperts | None = None

    @property
    def num_tree(self) -> int:
        return len(self.ids_N)

    @property
    def num_trajectories(self) -> int:
        """Records of the group, those left out included."""
        return len(self.record_ids)

    @property
    def entries_T(self) -> Int64:
        """Entries of each trajectory: `trained_tokens_T` less those without a loss."""
        return np.bincount(self.entries.trajectory_E, minlength=self.num_trajectories).astype(np.int64)

    def at(self, staleness: Staleness) -> "TokenTree":
        """The tree at one step: every entry has the staleness of its version; entries too stale to have a loss are gone."""
        entries = self.entries
        versions_V, version_of_E = np.unique(entries.version_E, return_inverse=True)
        staleness_V = np.array([staleness.of(v) for v in versions_V.tolist()], dtype=np.float32)
        young_V = np.array([not staleness.too_stale(v) for v in versions_V.tolist()], dtype=bool)
        measured = dataclasses.replace(entries, staleness_E=staleness_V[version_of_E])
        return dataclasses.replace(self, entries=measured.take(young_V[version_of_E]))


def merge(
    records: Sequence[RecordTree],
    *,
    drop_zero_advantage: bool = False,
    minimal_advantage: float = 0.0,
    skip_non_positive_advantage: bool = False,
    merging: Merging = Merging.TREE,
    experts: Mapping[str, Experts] | None = None,
) -> TokenTree:
    """Merge the records of a group. Every entry has staleness 0 until `TokenTree.at` says otherwise.

    With another `merging` the result is a forest of chains that share nothing; a record's token is still trained once, in the
    first chain that has it.

    The three rules on advantages: `LossRules`. `experts`: the arrays of routed experts that the records name, by digest; None: no
    choice is replayed.
    """
    rules = LossRules(drop_zero_advantage, minimal_advantage, skip_non_positive_advantage)
    included = rules.kept(records)
    if merging is Merging.TREE:
        layout, node_of_token = insert_all(records, included)
        places = [(t, node_of_token[t], np.arange(records[t].num_tokens)) for t in included]
    else:
        layout, node_of_token, places = _chains(records, included, merging)
    parts = [_entries(records[t], rules.loss_mask(records[t]), node_of_token[t], t) for t in included]
    counts = [sequence_counts(records[t]) for t in included]
    replayed = None
    if experts is not None and any(records[t].experts for t in included):
        trie_nodes = node_of_token if merging is Merging.TREE else insert_all(records, included)[1]
        replayed = experts_of_tree(records, experts, trie_nodes, places, len(layout.ids_N))
    copies_N = np.zeros(len(layout.ids_N), dtype=np.int64)
    for t in included:
        np.add.at(copies_N, node_of_token[t], 1)
    return TokenTree(
        ids_N=layout.ids_N,
        parents_N=layout.parents_N,
        positions_N=layout.positions_N,
        ends_N=layout.ends_N,
        copies_N=copies_N,
        entries=concatenate(parts),
        record_ids=tuple(record.record_id for record in records),
        trained_tokens_T=np.array([int(record.trained_N.sum()) for record in records], dtype=np.int64),
        num_flat=sum(flat for flat, _ in counts),
        num_linear=sum(linear for _, linear in counts),
        images=images_of_tree(records, places, layout.parents_N),
        experts=replayed,
    )


def concatenate(parts: Sequence[Entries]) -> Entries:
    """All entries, one part after the other; no part gives no entry."""
    ints, floats = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
    none = Entries(ints, floats, floats, floats, np.zeros((0, 3), dtype=np.float32), ints, ints, floats, ints, ints)
    return Entries(
        *(np.concatenate([getattr(p, name) for p in (none, *parts)]) for name in Entries.__dataclass_fields__)
    )


def _chains(
    records: Sequence[RecordTree], included: Sequence[int], merging: Merging
) -> tuple[TreeLayout, dict[int, Int64], list[tuple[int, Int64, Int64]]]:
    """One chain after the other, where each record's token stands first, and of which record's tokens each chain is."""
    ids: list[Int32] = []
    lengths: list[int] = []
    places: list[tuple[int, Int64, Int64]] = []
    node_of_token = {t: np.full(records[t].num_tokens, -1, dtype=np.int64) for t in included}
    offset = 0
    for t in included:
        leaves, requests = sequence_ends(records[t])
        for end in (leaves if merging is Merging.LINEAR else requests).tolist():
            path = records[t].path(end)
            new = path[node_of_token[t][path] < 0]
            node_of_token[t][new] = offset + len(path) - len(new) + np.arange(len(new))
            ids.append(records[t].token_ids_N[path])
            lengths.append(len(path))
            places.append((t, offset + np.arange(len(path)), path.astype(np.int64)))
            offset += len(path)
    starts = np.cumsum([0, *lengths])
    index_N, start_N = np.arange(offset), np.repeat(starts[:-1], lengths).astype(np.int64)
    layout = TreeLayout(
        ids_N=np.concatenate([np.zeros(0, dtype=np.int64), *ids]),
        parents_N=np.where(index_N == start_N, -1, index_N - 1),
        positions_N=index_N - start_N,
        ends_N=np.repeat(starts[1:], lengths).astype(np.int64),
        node_of_slot=index_N,
    )
    return layout, node_of_token, places


def _entries(record: RecordTree, loss_mask_N: Bool, node_of_token: Int64, trajectory: int) -> Entries:
    trained = np.flatnonzero(loss_mask_N)
    dispatch_E = record.dispatches_N[trained]
    advantage_D = np.array([d.advantage for d in record.dispatches], dtype=np.float32)
    temperature_D = np.array([d.temperature for d in record.dispatches], dtype=np.float32)
    truncation_D = np.array([_columns_of(d.truncation) for d in record.dispatches], dtype=np.float32)
    turn_D = np.array([d.turn for d in record.dispatches], dtype=np.int64)
    return Entries(
        node_E=node_of_token[trained],
        old_logprob_E=record.logprobs_N[trained].astype(np.float32),
        advantage_E=advantage_D[dispatch_E],
        temperature_E=temperature_D[dispatch_E],
        truncation_E=truncation_D.reshape(-1, 3)[dispatch_E],
        trajectory_E=np.full(len(trained), trajectory, dtype=np.int64),
        turn_E=turn_D[dispatch_E],
        staleness_E=np.zeros(len(trained), dtype=np.float32),
        version_E=record.versions_N[trained].astype(np.int64),
        engine_E=_engines_of(record)[trained],
    )


def _engines_of(record: RecordTree) -> Int64:
    """Per token of the record, the number of the engine that sampled it. A dispatch's tokens stand in their order."""
    number_D = np.array([engine_number(d.engines[-1][0] if d.engines else None) for d in record.dispatches] + [0])
    engine_N: Int64 = number_D.astype(np.int64)[record.dispatches_N]  # index -1 reads the appended 0
    for index, dispatch in enumerate(record.dispatches):
        counts = [count for _, count in dispatch.engines if count is not None]
        if len(counts) > 1:
            sampled = np.flatnonzero(record.dispatches_N == index)
            engine_N[sampled] = np.repeat([engine_number(url) for url, _ in dispatch.engines], counts)
    return engine_N
