"""Buckets: sender and receiver split a file identically, and its bytes are sent."""

import json
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from shared.errors import DataError
from shared.weights.buckets import buckets_of


def written(folder: Path, header: dict[str, object], data: bytes) -> Path:
    text = json.dumps(header).encode()
    file = folder / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return file


@pytest.mark.parametrize("limit", [1, 40, 64, 1 << 20])
def test_the_buckets_of_a_file_are_all_its_tensors_in_the_order_of_its_bytes(tmp_path: Path, limit: int) -> None:
    tensors = {
        f"t{i}": np.arange(i, dtype=kind) for i, kind in enumerate((np.float16, np.float32, np.int8, np.float64))
    }
    save_file(tensors, file := tmp_path / "model.safetensors")
    data = file.read_bytes()
    buckets = buckets_of(file, limit)
    assert all(one.end == other.start for one, other in pairwise(buckets))
    assert buckets[-1].end == len(data)
    found = {}
    for bucket in buckets:
        assert bucket.end - bucket.start <= limit or len(bucket.tensors) == 1
        for tensor in bucket.tensors:
            assert (tensor.start - bucket.start) % np.dtype(tensor.dtype).itemsize == 0
            found[tensor.name] = np.frombuffer(data[tensor.start : tensor.end], tensor.dtype).reshape(tensor.shape)
    assert found.keys() == tensors.keys()
    for name, values in tensors.items():
        assert found[name].tobytes() == values.tobytes()


def entry(dtype: str, size: int, start: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": [size], "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"a": entry("I8", 1, 0, 1), "b": entry("F32", 1, 1, 5)}, "tensor b is not aligned after a"),
        ({"a": entry("I8", 1, 0, 1), "b": entry("I8", 1, 2, 3)}, "tensor b begins at byte"),
        ({"a": entry("F32", 2, 0, 4)}, "tensor a of 4 bytes is float32 of shape"),
        ({"a": entry("F32", 1, 0, 4)}, r"it has \d+ bytes, its tensors need"),
        ({"a": entry("F4", 2, 0, 1)}, "not a whole safetensors file: KeyError"),
    ],
)
def test_a_file_that_cannot_be_split_is_refused(tmp_path: Path, header: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=words):
        buckets_of(written(tmp_path, header, b"\0" * 5), 100)
