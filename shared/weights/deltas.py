"""Bit-exact deltas between two weight files of the same layout: a publisher writes them, followers apply them to a copy.

    file   = MAGIC block*                        only changed blocks
    block  = offset u64, items u32, changed u32, item bytes u8, encoding u8, parts u8, then its parts
    part   = length u32, zipped u8, bytes

A block covers up to `BLOCK_ITEMS` items (numbers of one tensor). It stores old XOR new, so it is valid only for the exact old
bytes: it is applied to a copy, whose checksum is verified (`shared.weights.assembly`). Items are shuffled into planes (all
first bytes, all second bytes, …): the planes of sign, exponent and leading digits are nearly zero and compress well; those
of trailing digits are noise and stored uncompressed.

Two encodings, measured on 8 M random weights after the equivalent of one Adam step: `SPARSE` (gaps between changed items, and
their values) if under a quarter of the items changed (bfloat16, learning rate 1e-6: 2.5 % changed, 1.7 % of the bytes stored;
dense 4.1 %), else `DENSE` (all items; float32: all change; 45 % of the bytes at 1e-6, 68 % at 2e-4).
"""

import struct
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import DataError

MAGIC = b"TANDEM-DELTA-1\n"
BLOCK_ITEMS = 1 << 20
SPARSE, DENSE = 0, 1
SPARSE_BELOW = 0.25  # share of changed items
PROBE_BYTES = 1 << 14  # a plane whose middle does not shrink is not compressed: zlib is 50 times slower on noise
WORTH_IT = 0.95

_BLOCK = struct.Struct("<QIIBBB")
_PART = struct.Struct("<IB")
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

Bytes = NDArray[np.uint8]
Items = NDArray[Any]  # of one of the unsigned types


@dataclass(frozen=True, slots=True)
class Region:
    """One tensor's bytes in both files. `old` and `new` are contiguous and of one length."""

    offset: int
    item_bytes: int
    old: Bytes
    new: Bytes


@dataclass(frozen=True, slots=True)
class DeltaSize:
    """`changed` of `items` numbers differ; the file has `bytes` bytes."""

    items: int
    changed: int
    bytes: int


def write_delta(target: Path, regions: Iterable[Region], threads: int = 1) -> DeltaSize:
    """Write the new file `target`. Blocks are encoded by `threads` threads (numpy and zlib release the interpreter's lock)."""
    items = changed = 0
    with target.open("xb") as file, ThreadPoolExecutor(threads) as pool:
        file.write(MAGIC)
        blocks = _blocks(regions)
        while group := list(islice(blocks, 4 * threads)):  # bounds the blocks in memory
            for block, (count, encoded) in zip(group, pool.map(_encode, group), strict=True):
                items += len(block.new) // block.item_bytes
                changed += count
                file.write(encoded)
        return DeltaSize(items, changed, file.tell())


def apply_delta(delta: bytes, weights: Path) -> None:
    """Change `weights`, a copy of the old file, into the new one. Raises DataError if `delta` does not fit the file."""
    if not delta.startswith(MAGIC):
        raise DataError(f"not a delta of weights: it begins with {delta[:16]!r}; expected {MAGIC!r}")
    mapped = np.memmap(weights, dtype=np.uint8, mode="r+")
    reader = _Reader(delta, len(MAGIC))
    try:
        while reader.at < len(delta):
            _apply_block(reader, mapped)
    except (struct.error, zlib.error, ValueError, IndexError, KeyError) as exc:
        raise DataError(f"a delta of weights does not fit {weights}: {type(exc).__name__}: {exc}") from exc
    mapped.flush()


# ---------------------------------------------------------------------- encoding


def _blocks(regions: Iterable[Region]) -> Iterator[Region]:
    for region in regions:
        size = BLOCK_ITEMS * region.item_bytes
        for start in range(0, len(region.new), size):
            part = slice(start, start + size)
            yield Region(region.offset + start, region.item_bytes, region.old[part], region.new[part])


def _encode(block: Region) -> tuple[int, bytes]:
    """(changed items, the block's bytes); no bytes if nothing changed."""
    kind = _UNSIGNED[block.item_bytes]
    difference = block.old.view(kind) ^ block.new.view(kind)
    where = np.flatnonzero(difference)
    if not len(where):
        return 0, b""
    sparse = len(where) < SPARSE_BELOW * len(difference)
    if sparse:
        gaps = np.diff(where, prepend=-1).astype(np.uint32)  # a block is short: they fit
        parts = [*_planes(gaps), *_planes(difference[where])]
    else:
        parts = _planes(difference)
    head = _BLOCK.pack(
        block.offset, len(difference), len(where), block.item_bytes, SPARSE if sparse else DENSE, len(parts)
    )
    return len(where), head + b"".join(map(_part, parts))


def _planes(items: Items) -> list[bytes]:
    """Byte 0 of all items, byte 1 of all items, …; numbers are little-endian, as in safetensors."""
    return [plane.tobytes() for plane in items.view(np.uint8).reshape(-1, items.itemsize).T]


def _part(plane: bytes) -> bytes:
    middle = max(0, len(plane) // 2 - PROBE_BYTES // 2)
    probe = plane[middle : middle + PROBE_BYTES]
    if len(zlib.compress(probe, 1)) < WORTH_IT * len(probe):
        zipped = zlib.compress(plane, 1)
        return _PART.pack(len(zipped), 1) + zipped
    return _PART.pack(len(plane), 0) + plane


# ---------------------------------------------------------------------- applying


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self._data, self.at = memoryview(data), at

    def head(self) -> tuple[int, int, int, int, int, int]:
        fields: tuple[int, int, int, int, int, int] = _BLOCK.unpack_from(self._data, self.at)
        self.at += _BLOCK.size
        return fields

    def plane(self, length: int) -> Bytes:
        """Read the next part, which must unpack to `length` bytes."""
        stored, zipped = _PART.unpack_from(self._data, self.at)
        self.at += _PART.size
        data = self._data[self.at : self.at + stored]
        self.at += stored
        plane_bytes = np.frombuffer(zlib.decompress(data, bufsize=length) if zipped else data, dtype=np.uint8)
        if len(plane_bytes) != length:
            raise ValueError(f"a part has {len(plane_bytes)} bytes; expected {length}")
        return plane_bytes

    def items(self, count: int, item_bytes: int) -> Items:
        planes = np.stack([self.plane(count) for _ in range(item_bytes)], axis=1)
        return planes.reshape(-1).view(_UNSIGNED[item_bytes])


def _apply_block(reader: _Reader, mapped: Bytes) -> None:
    offset, items, changed, item_bytes, encoding, parts = reader.head()
    here = mapped[offset : offset + items * item_bytes].view(_UNSIGNED[item_bytes])
    if len(here) != items:
        raise ValueError(f"a block ends at byte {offset + items * item_bytes} of a file of {len(mapped)}")
    expected = item_bytes + (4 if encoding == SPARSE else 0)
    if encoding not in (SPARSE, DENSE) or parts != expected:
        raise ValueError(f"a block has encoding {encoding} with {parts} parts; expected {expected}")
    if encoding == SPARSE:
        where = np.cumsum(reader.items(changed, 4).astype(np.int64)) - 1
        here[where] ^= reader.items(changed, item_bytes)
    else:
        here ^= reader.items(items, item_bytes)
