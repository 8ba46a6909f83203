"""New weights from disk, in two parts: read and verify (any thread, nothing live touched), then copy into the model.

A checkpoint is accepted only when its files are whole, its tensors are exactly those the engine started with, of the
same shapes, floating point and finite, and its config describes the same architecture. SGLang dies of a truncated
file or a wrong shape, and takes missing tensors for success; here each is a message.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as parse_safetensors
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

INDEX = "model.safetensors.index.json"
# config fields that change what the same weights mean; the others (dtype, use_cache, versions, …) do not
MEANINGFUL = (
    "model_type", "hidden_act", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
    "rope_parameters", "tie_word_embeddings",
)  # fmt: skip


class CheckpointError(Exception):
    """The checkpoint cannot be used; the message says what was found and what was expected."""


@dataclass(frozen=True, slots=True)
class ExpectedCheckpoint:
    """What every update must look like: read once, from the folder the engine started with."""

    shapes: dict[str, tuple[int, ...]]
    aliases: frozenset[str]  # tied tensors, which a checkpoint may hold or leave out
    config: dict[str, Any]


def expect(model: PreTrainedModel, model_path: Path) -> ExpectedCheckpoint:
    shapes: dict[str, tuple[int, ...]] = {}
    for file in _files(model_path):
        with safe_open(file, framework="pt") as opened:
            shapes |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    tied: set[str] = (
        set(getattr(model, "_tied_weights_keys", None) or ()) if model.config.tie_word_embeddings else set()
    )
    shapes |= {name: tuple(model.state_dict()[name].shape) for name in tied if name in model.state_dict()}
    return ExpectedCheckpoint(shapes, frozenset(tied), model.config.to_dict())


def read_checkpoint(model_path: Path, expected: ExpectedCheckpoint) -> dict[str, Tensor]:
    """The verified float32 tensors of the folder. Raises CheckpointError."""
    _verify_config(model_path, expected)
    tensors: dict[str, Tensor] = {}
    for file in _files(model_path):
        try:
            tensors |= parse_safetensors(file.read_bytes())  # bytes, not mmap: the file may change under us
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} is not a whole safetensors file: {error}") from error
    _verify_names(model_path, tensors, expected)
    return {name: _verified(name, tensor, expected.shapes[name]) for name, tensor in tensors.items()}


def copy_into(model: PreTrainedModel, tensors: dict[str, Tensor]) -> None:
    """In place, so that whatever shares memory with the parameters follows. Cannot fail half-way: verified before."""
    live = model.state_dict()
    for name, tensor in tensors.items():
        live[name].copy_(tensor)


def by_model_names(model: PreTrainedModel, model_path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the names of the live model. Most architectures use the same names on disk; for those that
    do not (fused experts), transformers loads the folder once more and says what belongs where."""
    live = model.state_dict()
    if all(name in live for name in tensors):
        return tensors
    fresh = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32, local_files_only=True)
    return dict(fresh.state_dict())


def _files(model_path: Path) -> list[Path]:
    index = model_path / INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{index} is not a safetensors index: {error!r}") from error
        missing = [name for name in names if not (model_path / name).is_file()]
        if missing:
            raise CheckpointError(f"{index} names files that are not there: {', '.join(missing)}")
        return [model_path / name for name in names]
    found = sorted(model_path.glob("*.safetensors"))
    if not found:
        # SGLang's words
        raise CheckpointError(f"Failed to get weights iterator: Cannot find any model weights with `{model_path}`.")
    return found


def _config(model_path: Path) -> dict[str, Any] | None:
    """As transformers reads it, so that older and newer spellings of a field compare equal."""
    if not (model_path / "config.json").is_file():
        return None
    try:
        config: dict[str, Any] = AutoConfig.from_pretrained(model_path, local_files_only=True).to_dict()
    except (ValueError, OSError, KeyError) as error:
        raise CheckpointError(f"{model_path / 'config.json'} cannot be read: {error}") from error
    return config


def _verify_config(model_path: Path, expected: ExpectedCheckpoint) -> None:
    """A folder with tensors alone is fine; one with a config must mean the same by them."""
    config = _config(model_path)
    if config is None:
        return
    for key in MEANINGFUL:
        if config.get(key) != expected.config.get(key):
            raise CheckpointError(
                f"{model_path / 'config.json'}: {key} is {config.get(key)!r}; this engine serves {key} "
                f"{expected.config.get(key)!r}. Another architecture needs an engine of its own."
            )


def _verify_names(model_path: Path, tensors: dict[str, Tensor], expected: ExpectedCheckpoint) -> None:
    missing = sorted(expected.shapes.keys() - tensors.keys() - expected.aliases)
    if missing:
        raise CheckpointError(f"{model_path} lacks {len(missing)} of {len(expected.shapes)} tensors: {_some(missing)}")
    unknown = sorted(tensors.keys() - expected.shapes.keys())
    if unknown:
        raise CheckpointError(f"{model_path} holds {len(unknown)} tensors this model does not have: {_some(unknown)}")


def _verified(name: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tuple(tensor.shape) != shape:
        raise CheckpointError(f"tensor {name} has shape {tuple(tensor.shape)}; expected {shape}")
    if not tensor.is_floating_point():
        raise CheckpointError(f"tensor {name} is {tensor.dtype}; expected float32, bfloat16 or float16")
    tensor = tensor.float()
    if not torch.isfinite(tensor).all():
        raise CheckpointError(f"tensor {name} holds NaN or infinite values")
    return tensor


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
