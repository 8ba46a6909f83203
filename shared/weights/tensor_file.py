"""The header of a safetensors file: the position of each tensor. Torch-free."""

import io
import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from shared.errors import DataError

# safetensors type: (torch type, bytes)
DTYPES = {
    "F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2),
    "I64": ("int64", 8), "I32": ("int32", 4), "I16": ("int16", 2), "I8": ("int8", 1), "U8": ("uint8", 1), "BOOL": ("bool", 1),
    "F8_E4M3": ("float8_e4m3fn", 1), "F8_E5M2": ("float8_e5m2", 1),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FileTensor:
    """`start` and `end`: its byte range in the file."""

    name: str
    dtype: str  # torch's name
    shape: tuple[int, ...]
    start: int
    end: int


def tensors_of(file: Path, data: bytes | None = None) -> list[FileTensor]:
    """Tensors in byte order, contiguous. `data`: the bytes of `file`, if already read.

    Raises DataError if the header is unreadable or does not describe such a file.
    """
    try:
        with file.open("rb") if data is None else io.BytesIO(data) as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            header: dict[str, Any] = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        found = [_tensor(name, entry, 8 + length) for name, entry in header.items()]
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise DataError(f"{file} has an unreadable header: {type(exc).__name__}: {exc}") from exc
    found.sort(key=lambda tensor: (tensor.start, tensor.end))
    reached = found[0].start if found else 0
    for tensor in found:
        if tensor.start != reached:
            raise DataError(f"{file}: tensor {tensor.name} begins at byte {tensor.start}; expected {reached}")
        reached = tensor.end
    return found


def _tensor(name: str, entry: dict[str, Any], base: int) -> FileTensor:
    dtype, item_bytes = DTYPES[entry["dtype"]]
    start, end = (base + int(offset) for offset in entry["data_offsets"])
    shape = tuple(int(size) for size in entry["shape"])
    if end - start != prod(shape) * item_bytes:
        raise ValueError(f"tensor {name} of {end - start} bytes is {dtype} of shape {shape}")
    return FileTensor(name, dtype, shape, start, end)
