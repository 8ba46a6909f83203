"""The header of a safetensors file: the position of each tensor. Every reader here uses this module. Torch-free."""

import json
import struct
from dataclasses import dataclass
from io import SEEK_END
from math import prod
from pathlib import Path
from typing import Any

from shared.errors import DataError

# safetensors type: (torch type, bytes)
DTYPES = {
    "F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2),
    "I64": ("int64", 8), "I32": ("int32", 4), "I16": ("int16", 2), "I8": ("int8", 1), "U8": ("uint8", 1), "BOOL": ("bool", 1),
    "U16": ("uint16", 2), "U32": ("uint32", 4), "U64": ("uint64", 8),
    "F8_E4M3": ("float8_e4m3fn", 1), "F8_E5M2": ("float8_e5m2", 1), "F8_E8M0": ("float8_e8m0fnu", 1),
}  # fmt: skip
MAX_HEADER_BYTES = 100_000_000  # safetensors' own limit


@dataclass(frozen=True, slots=True)
class FileTensor:
    """`start` and `end`: its byte range in the file."""

    name: str
    dtype: str  # torch's name
    shape: tuple[int, ...]
    start: int
    end: int


def tensors_of(file: Path, data: bytes | memoryview | None = None) -> list[FileTensor]:
    """Tensors in byte order, contiguous, up to the end of the file. `data`: the bytes of `file`, if already read.

    Raises DataError if the header is unreadable or does not describe the whole file.
    """
    try:
        if data is None:
            with file.open("rb") as opened:
                encoded = opened.read(_header_bytes(opened.read(8)))
                size = opened.seek(0, SEEK_END)
        else:
            encoded, size = bytes(data[8 : 8 + _header_bytes(data[:8])]), len(data)
        header: dict[str, Any] = json.loads(encoded)
        header.pop("__metadata__", None)
        first = 8 + len(encoded)
        parsed = [_tensor(name, entry, first) for name, entry in header.items()]
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise DataError(f"{file} is not a whole safetensors file: {type(exc).__name__}: {exc}") from exc
    parsed.sort(key=lambda tensor: (tensor.start, tensor.end))
    reached = first
    for tensor in parsed:
        if tensor.start != reached:
            raise DataError(f"{file}: tensor {tensor.name} begins at byte {tensor.start}; expected {reached}")
        reached = tensor.end
    if size != reached:
        raise DataError(f"{file} is not a whole safetensors file: it has {size} bytes, its tensors need {reached}")
    return parsed


def _header_bytes(prefix: bytes | memoryview) -> int:
    (length,) = struct.unpack("<Q", prefix)
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"its header would have {length} bytes")
    return int(length)


def _tensor(name: str, entry: dict[str, Any], base: int) -> FileTensor:
    dtype, item_bytes = DTYPES[entry["dtype"]]
    start, end = (base + int(offset) for offset in entry["data_offsets"])
    shape = tuple(int(size) for size in entry["shape"])
    if end - start != prod(shape) * item_bytes:
        raise ValueError(f"tensor {name} of {end - start} bytes is {dtype} of shape {shape}")
    return FileTensor(name, dtype, shape, start, end)
