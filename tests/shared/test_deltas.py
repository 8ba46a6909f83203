"""Deltas between weight files are applied bit for bit, or refused."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import DataError
from shared.weights import deltas
from shared.weights.deltas import MAGIC, Region, apply_delta, write_delta


def regions(old: bytes, new: bytes, sizes: list[tuple[int, int]]) -> list[Region]:
    """The file cut into (items, bytes of one) from its begin; what is left is the same in both."""
    found, offset = [], 0
    for items, item_bytes in sizes:
        end = offset + items * item_bytes
        pair = (np.frombuffer(data[offset:end], dtype=np.uint8) for data in (old, new))
        found.append(Region(offset, item_bytes, *pair))
        offset = end
    return found


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.tuples(st.integers(0, 3000), st.sampled_from([1, 2, 4, 8])), max_size=5),
    share=st.sampled_from([0.0, 0.001, 0.1, 0.3, 1.0]),
    threads=st.sampled_from([1, 3]),
)
def test_any_change_of_any_items_is_applied_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    sizes: list[tuple[int, int]],
    share: float,
    threads: int,
) -> None:
    folder = tmp_path_factory.mktemp("delta")
    random = np.random.default_rng(seed)
    total = sum(items * item_bytes for items, item_bytes in sizes) + 1
    old = random.integers(0, 256, total, dtype=np.uint8)
    new = np.where(random.random(total) < share, random.integers(0, 256, total, dtype=np.uint8), old)
    new[-1] = old[-1]
    (folder / "weights").write_bytes(old.tobytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deltas, "BLOCK_ITEMS", 700)  # several blocks a region
        size = write_delta(folder / "delta", regions(old.tobytes(), new.tobytes(), sizes), threads)
    apply_delta((folder / "delta").read_bytes(), folder / "weights")
    assert (folder / "weights").read_bytes() == new.tobytes()
    assert size.items == sum(items for items, _ in sizes)
    assert size.bytes == (folder / "delta").stat().st_size
    if share == 0:
        assert size.changed == 0
        assert size.bytes == len(MAGIC)


def test_rare_changes_of_bfloat16_take_a_fiftieth_of_the_bytes(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    old = random.integers(0, 1 << 16, 1 << 18).astype(np.uint16)
    new = np.where(random.random(len(old)) < 0.02, old ^ 1, old).astype(np.uint16)
    pair = (items.view(np.uint8) for items in (old, new))
    size = write_delta(tmp_path / "delta", [Region(0, 2, *pair)])
    assert size.bytes < old.nbytes / 50
    assert 0.015 < size.changed / size.items < 0.025


@pytest.mark.parametrize("damage", ["cut", "other file", "no delta"])
def test_a_delta_that_does_not_fit_is_refused(tmp_path: Path, damage: str) -> None:
    old, new = bytes(4000), bytes(range(250)) * 16
    (tmp_path / "weights").write_bytes(old if damage != "other file" else old[:3000])
    write_delta(tmp_path / "delta", regions(old, new, [(1000, 4)]))
    data = (tmp_path / "delta").read_bytes()
    data = {"cut": data[:-5], "other file": data, "no delta": b"PK" + data}[damage]
    with pytest.raises(DataError, match="delta of weights"):
        apply_delta(data, tmp_path / "weights")
