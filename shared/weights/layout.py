"""Reads a checkpoint's layout from the headers of its safetensors files: names, dtypes and shapes. Torch-free.

SGLang crashes on a truncated file or a wrong shape, and reports success for a folder with missing or additional tensors. So the
layout of new weights is first compared with that of the engine's initial weights; the local engine also does this, before it
changes anything.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.errors import DataError
from shared.weights.tensor_file import FileTensor, tensors_of

INDEX = "model.safetensors.index.json"
CONVERTIBLE = ("float64", "float32", "float16", "bfloat16")  # engines cast among these on loading


@dataclass(frozen=True, slots=True)
class CheckpointLayout:
    """`optional`: tensors that a checkpoint may omit, because the model ties them to others."""

    tensors: Mapping[str, FileTensor]
    optional: frozenset[str]


def read_layout(folder: Path) -> CheckpointLayout:
    """Every tensor that an engine would load from `folder`. Raises DataError for a missing, truncated or invalid file."""
    tensors = {tensor.name: tensor for file in weight_files(folder) for tensor in tensors_of(file)}
    return CheckpointLayout(tensors, _tied(folder))


def check_layout(folder: Path, expected: CheckpointLayout) -> None:
    """Check that `folder` holds exactly the tensors of `expected`, complete and with equal shapes. Raises DataError."""
    actual = read_layout(folder).tensors
    missing = sorted(expected.tensors.keys() - actual.keys() - expected.optional)
    if missing:
        raise DataError(f"{folder} lacks {len(missing)} of {len(expected.tensors)} tensors: {_some(missing)}")
    unknown = sorted(actual.keys() - expected.tensors.keys() - expected.optional)
    if unknown:
        raise DataError(f"{folder} holds {len(unknown)} tensors this model does not have: {_some(unknown)}")
    for name, tensor in actual.items():
        _check_tensor(f"{folder}: tensor {name}", tensor, expected.tensors.get(name))


def weight_files(folder: Path) -> list[Path]:
    """The files an engine would read: those named in the index, or else every safetensors file."""
    index = folder / INDEX
    if not index.is_file():
        sharded = sorted(folder.glob("*.safetensors"))
        if sharded:
            return sharded
        # SGLang's words
        raise DataError(
            f"Failed to get weights iterator: Cannot find any model weights with `{folder}`. Expected *.safetensors; "
            "`save_pretrained` of transformers writes them"
        )
    try:
        shards = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise DataError(f"{index} is not a safetensors index: {error!r}") from error
    wrong = [name for name in shards if not isinstance(name, str) or name != Path(name).name]
    if wrong:
        raise DataError(
            f"{index} is not a safetensors index: a file is {wrong[0]!a}; expected a file's name in the folder"
        )
    names = sorted(shards)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise DataError(f"{index} names files that are not there: {', '.join(missing)}")
    return [folder / name for name in names]


def _check_tensor(what: str, actual: FileTensor, expected: FileTensor | None) -> None:
    if expected is None:  # an optional one that the first checkpoint omitted
        return
    if actual.shape != expected.shape:
        raise DataError(f"{what} has shape {actual.shape}; expected {expected.shape}")
    if actual.dtype != expected.dtype and not (actual.dtype in CONVERTIBLE and expected.dtype in CONVERTIBLE):
        raise DataError(f"{what} is {actual.dtype}; expected {expected.dtype}")


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
