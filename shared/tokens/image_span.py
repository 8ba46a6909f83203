"""Images in token sequences: an image is its SHA-256 digest and the places of its features.

token ids    [user <row_1_col_1> I I I I <row_1_col_2> I I I I  what is this]      I: the family's placeholder
ImageSpan     sha256 "9f…", first 2, count 8: the placeholders 2-5 and 7-10, whose embeddings are the image's features
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """One image of a record. Its placeholders are the first `count` tokens with the id of token `first`, from there on.

    `grid`: (t, h, w) of its features, for models whose positions have three parts; None: positions count tokens.
    """

    sha256: str
    first: int
    count: int
    grid: tuple[int, int, int] | None = None


class _Record(Protocol):
    @property
    def record_id(self) -> str: ...
    @property
    def token_ids_N(self) -> Int32: ...
    @property
    def parents_N(self) -> Int32: ...
    @property
    def images(self) -> tuple[ImageSpan, ...]: ...


def placeholders(record: _Record, span: ImageSpan) -> Int64:
    """Nodes of the image's features, in order."""
    same = np.flatnonzero(record.token_ids_N[span.first :] == record.token_ids_N[span.first])
    return same[: span.count] + span.first


def check_images(record: _Record) -> None:
    """Raises ValueError for an image without all of its placeholders, one that overlaps another, and one with a branch inside."""
    last = -1
    for span in record.images:
        where = f"record {record.record_id}: image {span.sha256[:12]} at token {span.first}"
        if not last < span.first < len(record.token_ids_N) or span.count < 1:
            raise ValueError(f"{where}: not behind the image before it, or outside of {len(record.token_ids_N)} tokens")
        nodes = placeholders(record, span)
        if len(nodes) != span.count:
            raise ValueError(f"{where}: {len(nodes)} placeholders follow; expected {span.count}")
        last = int(nodes[-1])
        inside_N = record.parents_N[span.first + 1 : last + 1]
        later_N = record.parents_N[last + 1 :]
        branches = ((later_N >= span.first) & (later_N < last)).any()
        if (inside_N != np.arange(span.first, last)).any() or branches:
            raise ValueError(f"{where}: another branch begins inside the image")
        if span.grid is not None and int(np.prod(span.grid)) != span.count:
            raise ValueError(f"{where}: a grid of {span.grid} for {span.count} placeholders")


class ImageNumbers:
    """Numbers the features of different images differently, over all records that are compared."""

    def __init__(self) -> None:
        self._first_of: dict[tuple[str, int, tuple[int, int, int] | None], int] = {}
        self._next = -1

    def compared(self, record: _Record) -> Int32:
        """The tokens by which prefixes are compared: placeholders are negative, equal for equal features of equal images."""
        if not record.images:
            return record.token_ids_N
        tokens_N = record.token_ids_N.copy()
        for span in record.images:
            key = (span.sha256, span.count, span.grid)
            first = self._first_of.get(key)
            if first is None:
                first = self._first_of[key] = self._next
                self._next -= span.count
            tokens_N[placeholders(record, span)] = first - np.arange(span.count, dtype=np.int32)
        return tokens_N


def distinct_images(records: Sequence[_Record]) -> dict[tuple[str, tuple[int, int, int] | None], int]:
    """Number of each distinct (digest, grid), in order of first appearance."""
    numbers: dict[tuple[str, tuple[int, int, int] | None], int] = {}
    for record in records:
        for span in record.images:
            numbers.setdefault((span.sha256, span.grid), len(numbers))
    return numbers
