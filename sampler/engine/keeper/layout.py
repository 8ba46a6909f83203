"""Reads a checkpoint's layout from the headers of its safetensors files: names, dtypes and shapes. Torch-free.

SGLang crashes on a truncated file or a wrong shape, and reports success for a folder with missing or additional tensors. So the
layout of new weights is first compared with that of the engine's initial weights; the local engine also does this, before it
changes anything.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from shared.errors import DataError

INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # safetensors' own limit
ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64"), 8),
}
CONVERTIBLE = ("F64", "F32", "F16", "BF16")  # engines cast among these on loading


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """`dtype` as safetensors spells it: "F32", "BF16", …"""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CheckpointLayout:
    """`optional`: tensors that a checkpoint may omit, because the model ties them to others."""

    tensors: Mapping[str, TensorLayout]
    optional: frozenset[str]


def read_layout(folder: Path) -> CheckpointLayout:
    """Every tensor that an engine would load from `folder`. Raises DataError for a missing, truncated or invalid file."""
    tensors: dict[str, TensorLayout] = {}
    for file in weight_files(folder):
        tensors |= read_header(file)
    return CheckpointLayout(tensors, _tied(folder))


def check_layout(folder: Path, expected: CheckpointLayout) -> None:
    """Check that `folder` holds exactly the tensors of `expected`, complete and with equal shapes. Raises DataError."""
    found = read_layout(folder).tensors
    if missing := sorted(expected.tensors.keys() - found.keys() - expected.optional):
        raise DataError(f"{folder} lacks {len(missing)} of {len(expected.tensors)} tensors: {_some(missing)}")
    if unknown := sorted(found.keys() - expected.tensors.keys() - expected.optional):
        raise DataError(f"{folder} holds {len(unknown)} tensors this model does not have: {_some(unknown)}")
    for name, tensor in found.items():
        _check_tensor(f"{folder}: tensor {name}", tensor, expected.tensors.get(name))


def weight_files(folder: Path) -> list[Path]:
    """The files an engine would read: those named in the index, or else every safetensors file."""
    index = folder / INDEX
    if not index.is_file():
        if found := sorted(folder.glob("*.safetensors")):
            return found
        # SGLang's words
        raise DataError(f"Failed to get weights iterator: Cannot find any model weights with `{folder}`.")
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DataError(f"{index} is not a safetensors index: {error!r}") from error
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise DataError(f"{index} names files that are not there: {', '.join(missing)}")
    return [folder / name for name in names]


def read_header(file: Path) -> dict[str, TensorLayout]:
    """The tensors of one file, after checking them against its size."""
    try:
        with file.open("rb") as opened:
            (header_bytes,) = struct.unpack("<Q", opened.read(8))
            if header_bytes > MAX_HEADER_BYTES:
                raise ValueError(f"its header would have {header_bytes} bytes")
            header: dict[str, Any] = json.loads(opened.read(header_bytes))
        header.pop("__metadata__", None)
        tensors = {name: TensorLayout(str(t["dtype"]), tuple(t["shape"])) for name, t in header.items()}
        data_bytes = sum(prod(t.shape) * ITEM_BYTES[t.dtype] for t in tensors.values())
        size = file.stat().st_size
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{file} is not a whole safetensors file: {type(error).__name__}: {error}") from error
    if size != 8 + header_bytes + data_bytes:
        raise DataError(
            f"{file} is not a whole safetensors file: it has {size} bytes, its tensors need {8 + header_bytes + data_bytes}"
        )
    return tensors


def _check_tensor(what: str, found: TensorLayout, expected: TensorLayout | None) -> None:
    if expected is None:  # an optional one that the first checkpoint omitted
        return
    if found.shape != expected.shape:
        raise DataError(f"{what} has shape {found.shape}; expected {expected.shape}")
    if found.dtype != expected.dtype and not (found.dtype in CONVERTIBLE and expected.dtype in CONVERTIBLE):
        raise DataError(f"{what} is {found.dtype}; expected {expected.dtype}")


def _tied(folder: Path) -> frozenset[str]:
    config = folder / "config.json"
    if not config.is_file():
        return frozenset()
    try:
        tied = json.loads(config.read_bytes()).get("tie_word_embeddings", False)
    except (ValueError, AttributeError) as error:
        raise DataError(f"{config} is not a JSON object: {error}") from error
    return frozenset({"lm_head.weight"} if tied else ())


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
