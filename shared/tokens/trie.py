"""A compressed trie over token ids, laid out in depth-first pre-order.

Inserting costs one vectorized comparison per edge that a path crosses, never Python per token: 131k tokens take milliseconds.
Every token gets a slot when it is inserted; slots never change when more is inserted, and the layout says which node of
the finished tree a slot became.

    suffix _N  token: of a record where it is inserted, of the finished tree in the layout
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shared.tokens.record_tree import RecordTree

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


def runs(parents_N: Int32) -> Iterator[tuple[int, int]]:
    """Maximal [start, stop) in which every token is the only child of the one before it. A run's parent is the end of
    a run.
    """
    n = len(parents_N)
    children_N = np.bincount(parents_N[parents_N >= 0], minlength=n)
    continues_N = (parents_N == np.arange(n) - 1) & (parents_N >= 0)
    continues_N &= children_N[np.maximum(parents_N, 0)] == 1
    starts = np.flatnonzero(~continues_N)
    yield from zip(starts.tolist(), [*starts[1:].tolist(), n], strict=True)


@dataclass(slots=True, eq=False)
class _Edge:
    """Tokens without a branch between them. `slot` numbers its first token; slots never change, edges may be cut in
    two.
    """

    tokens: Int32
    slot: int
    children: dict[int, "_Edge"] = field(default_factory=dict)
    tail: "_Edge | None" = None  # what was cut off: where an older cursor beyond the end continues


@dataclass(frozen=True, slots=True)
class _Cursor:
    """A place in the trie: after the first `offset` tokens of `edge` as it was when the cursor was made."""

    edge: _Edge
    offset: int

    def resolve(self) -> tuple[_Edge, int]:
        edge, offset = self.edge, self.offset
        while offset > len(edge.tokens):
            offset -= len(edge.tokens)
            assert edge.tail is not None, "a cursor beyond an edge that was never cut"
            edge = edge.tail
        return edge, offset


@dataclass(frozen=True, slots=True)
class TreeLayout:
    ids_N: Int64
    parents_N: Int64
    positions_N: Int64
    ends_N: Int64
    node_of_slot: Int64


class Trie:
    """A compressed trie: inserting costs one vectorised comparison per edge passed, never Python per token."""

    def __init__(self) -> None:
        self._root = _Edge(np.zeros(0, dtype=np.int32), slot=0)
        self._num_slots = 0

    def insert(self, record: RecordTree, compared_N: Int32) -> Int64:
        """Insert every path of the record, its tokens as `compared_N`; returns the slot of each of them."""
        slot_N = np.empty(record.num_tokens, dtype=np.int64)
        after: dict[int, _Cursor] = {
            -1: _Cursor(self._root, 0)
        }  # last token of a run (-1: before the roots) -> place after it
        for start, stop in runs(record.parents_N):
            cursor = after[int(record.parents_N[start])]
            after[stop - 1] = self._insert_run(cursor, compared_N[start:stop], slot_N[start:stop])
        return slot_N

    def _insert_run(self, cursor: _Cursor, tokens: Int32, slots_out: Int64) -> _Cursor:
        edge, offset = cursor.resolve()
        done = 0
        while done < len(tokens):
            if offset == len(edge.tokens):
                child = edge.children.get(int(tokens[done]))
                if child is None:
                    child = self._grow(edge, tokens[done:])
                edge, offset = child, 0
            length = _common_length(edge.tokens[offset:], tokens[done:])
            slots_out[done : done + length] = np.arange(edge.slot + offset, edge.slot + offset + length)
            done, offset = done + length, offset + length
            if done < len(tokens) and offset < len(edge.tokens):
                _cut(edge, offset)
        return _Cursor(edge, offset)

    def _grow(self, edge: _Edge, tokens: Int32) -> _Edge:
        child = edge.children[int(tokens[0])] = _Edge(tokens, slot=self._num_slots)
        self._num_slots += len(tokens)
        return child

    def layout(self) -> TreeLayout:
        """Lay the edges out in depth-first pre-order; children in the order in which they were first inserted."""
        ids: list[Int32] = []
        n = self._num_slots
        out = TreeLayout(*(np.empty(n, dtype=np.int64) for _ in range(5)))
        position = 0
        spans: list[tuple[int, int, int]] = []  # start, stop, parent span
        stack = [(edge, -1, -1, 0) for edge in reversed(self._root.children.values())]
        while stack:
            edge, parent, parent_span, depth = stack.pop()
            start, stop = position, position + len(edge.tokens)
            out.parents_N[start:stop] = np.arange(start - 1, stop - 1)
            out.parents_N[start] = parent
            out.positions_N[start:stop] = np.arange(depth, depth + stop - start)
            out.node_of_slot[edge.slot : edge.slot + stop - start] = np.arange(start, stop)
            ids.append(edge.tokens)
            children = reversed(edge.children.values())
            stack.extend((child, stop - 1, len(spans), depth + stop - start) for child in children)
            spans.append((start, stop, parent_span))
            position = stop
        if ids:
            np.concatenate(ids, out=out.ids_N, casting="safe")
        _fill_ends(spans, out.ends_N)
        return out


def _common_length(a: Int32, b: Int32) -> int:
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n


def _cut(edge: _Edge, offset: int) -> None:
    """Cut the edge after `offset` tokens; the rest keeps its slots and children, and becomes the only child."""
    rest = _Edge(edge.tokens[offset:], edge.slot + offset, edge.children, edge.tail)
    edge.tokens, edge.children, edge.tail = edge.tokens[:offset], {int(rest.tokens[0]): rest}, rest


def _fill_ends(spans: list[tuple[int, int, int]], ends_N: Int64) -> None:
    """A subtree ends where the last edge in it ends; all tokens of an edge share that end. `spans` are in pre-order."""
    ends = [stop for _, stop, _ in spans]
    for span in range(len(spans) - 1, -1, -1):
        start, stop, parent = spans[span]
        ends_N[start:stop] = ends[span]
        if parent >= 0:
            ends[parent] = max(ends[parent], ends[span])
