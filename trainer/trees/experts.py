"""Routed experts in trees and rows: which experts the engine chose for each token, for the trainer's routers to repeat.

TreeExperts   of a tree, or of a piece of one (numpy)      ─ pack ─▶      RowExperts   of a row (tensors)

A node of the group's prefix tree has the experts of the first record that has any for it, also where the tree is then computed in
chains: so merging does not change what is replayed.

    suffix _NC  token, choice: the experts of one layer after the other
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shared.documents.expert_array import Experts
from shared.errors import DataError
from shared.tokens.expert_span import Bool, experts_of_record
from shared.tokens.record_tree import RecordTree
from shared.tokens.trie import Int64


@dataclass(frozen=True, slots=True)
class TreeExperts:
    """`given_N`: whether the engine's choice is known; where it is not, `experts_NC` is 0."""

    experts_NC: Experts
    given_N: Bool

    def take(self, nodes: Int64) -> "TreeExperts":
        """Of these nodes alone."""
        return TreeExperts(self.experts_NC[nodes], self.given_N[nodes])


class RouterShape(NamedTuple):
    """What a model's routers choose."""

    layers: int  # of the model
    with_experts: int  # those that have routers
    top_k: int
    num_experts: int


class ModelBounds(NamedTuple):
    """What a model can be given; None: not known, or no routers."""

    vocab_size: int | None = None  # ids from 0 up to here, without it, can be embedded
    routers: RouterShape | None = None


def check_routed(record_id: str, arrays: Iterable[Experts], routers: RouterShape) -> None:
    """Raises DataError for routed experts that are not of this model."""
    for array in arrays:
        expected = {layers * routers.top_k for layers in (routers.layers, routers.with_experts)}
        if array.shape[1] not in expected:
            numbers = " or ".join(map(str, sorted(expected)))
            raise DataError(
                f"record {record_id}: {array.shape[1]} routed experts of a token; expected {numbers}, "
                f"{routers.top_k} of each of the model's layers or of those with experts: the engine serves another model"
            )
        if array.max() >= routers.num_experts:
            raise DataError(f"record {record_id}: routed expert {array.max()}; expected 0 to {routers.num_experts - 1}")


@dataclass(frozen=True, slots=True)
class RowExperts:
    """As in `TreeExperts`; int16 for models with more than 256 experts, else uint8."""

    experts_NC: Tensor
    given_N: Tensor

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "RowExperts":
        moved = (tensor.to(device, non_blocking=non_blocking) for tensor in (self.experts_NC, self.given_N))
        return RowExperts(*moved)

    def padded(self, extra: int) -> "RowExperts":
        """With `extra` tokens for which no choice is known."""
        return RowExperts(
            *(torch.cat([x, x.new_zeros((extra, *x.shape[1:]))]) for x in (self.experts_NC, self.given_N))
        )

    def of_layer(self, layer: int, top_k: int, here: slice) -> tuple[Tensor, Tensor]:
        """[tokens, experts of a token] int64, and which tokens have any, of the tokens `here` in a layer of the array."""
        return self.experts_NC[here, layer * top_k : (layer + 1) * top_k].long(), self.given_N[here]


def experts_of_tree(
    records: Sequence[RecordTree],
    arrays: Mapping[str, Experts],
    trie_nodes: Mapping[int, Int64],
    places: Sequence[tuple[int, Int64, Int64]],
    num_nodes: int,
) -> TreeExperts | None:
    """Of a tree whose nodes hold tokens of records: `places` lists (record, nodes, its tokens there). `trie_nodes`: of each
    record the nodes of its tokens in the group's prefix tree. None: no record has any.

    Raises DataError for records whose arrays have other numbers of choices.
    """
    present = [t for t in trie_nodes if records[t].experts]
    if not present:
        return None
    of_record = {t: experts_of_record(records[t], arrays) for t in present}
    widths = {experts_NC.shape[1] for experts_NC, _ in of_record.values()}
    if len(widths) > 1:
        raise DataError(
            f"record {records[present[0]].record_id}: the tokens of its group have {sorted(widths)} routed experts; expected one "
            "number: one model, and engines of one kind"
        )
    widest = np.result_type(*(experts_NC.dtype for experts_NC, _ in of_record.values()))
    size = 1 + max(int(nodes.max()) for nodes in trie_nodes.values())
    of_trie = TreeExperts(np.zeros((size, widths.pop()), dtype=widest), np.zeros(size, dtype=bool))
    for t, (experts_NC, given_N) in of_record.items():
        new = np.flatnonzero(given_N & ~of_trie.given_N[trie_nodes[t]])[
            ::-1
        ]  # of two equal branches the first is written last
        of_trie.experts_NC[trie_nodes[t][new]], of_trie.given_N[trie_nodes[t][new]] = experts_NC[new], True
    node_N = np.zeros(num_nodes, dtype=np.int64)
    for t, nodes, tokens in places:
        node_N[nodes] = trie_nodes[t][tokens]
    return of_trie.take(node_N)


def experts_of_row(parts: Sequence[tuple[TreeExperts | None, int]]) -> RowExperts | None:
    """Of (a tree's, its number of tokens), one after the other. None: none has any.

    Raises DataError for trees whose arrays have other numbers of choices.
    """
    present = [experts for experts, _ in parts if experts is not None]
    if not present:
        return None
    widths = {experts.experts_NC.shape[1] for experts in present}
    if len(widths) > 1:
        raise DataError(f"the tokens of a row have {sorted(widths)} routed experts; expected one number, of one model")
    width, widest = widths.pop(), np.result_type(*(experts.experts_NC.dtype for experts in present))
    arrays: list[npt.NDArray[np.integer]] = []
    given: list[Bool] = []
    for experts, count in parts:
        arrays.append(np.zeros((count, width), dtype=widest) if experts is None else experts.experts_NC)
        given.append(np.zeros(count, dtype=bool) if experts is None else experts.given_N)
    whole = np.concatenate(arrays)
    narrow = whole.astype(np.uint8 if widest == np.uint8 else np.int16)
    return RowExperts(torch.from_numpy(narrow), torch.from_numpy(np.concatenate(given)))
