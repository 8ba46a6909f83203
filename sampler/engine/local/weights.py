"""Loads new weights from disk in two steps: read and verify (any thread, without changing the model), then copy.

A checkpoint is accepted only if its files are complete, its tensors are exactly those the engine started with, of the same
shapes, floating point and finite, and its config describes the same architecture. SGLang crashes on a truncated file or a wrong
shape, and reports success despite missing tensors; here each is an error message.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_safetensors
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from shared.errors import DataError
from shared.weights.layout import CheckpointLayout, check_layout, read_layout, weight_files

# config fields that change what the same weights mean; the others (dtype, use_cache, versions, …) do not
MEANINGFUL = (
    "model_type", "hidden_act", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
    "rope_parameters", "tie_word_embeddings",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExpectedCheckpoint:
    """The required properties of every update, read once from the engine's initial folder."""

    layout: CheckpointLayout
    config: dict[str, Any]


def expect(model: PreTrainedModel, model_path: Path) -> ExpectedCheckpoint:
    return ExpectedCheckpoint(read_layout(model_path), model.config.to_dict())


def read_checkpoint(model_path: Path, expected: ExpectedCheckpoint) -> dict[str, Tensor]:
    """The verified float32 tensors of the folder. Raises DataError with the found and expected values."""
    _verify_config(model_path, expected)
    check_layout(model_path, expected.layout)
    tensors: dict[str, Tensor] = {}
    for file in weight_files(model_path):
        try:
            tensors |= parse_safetensors(file.read_bytes())  # bytes, not mmap: the file may change meanwhile
        except (SafetensorError, OSError) as error:
            raise DataError(f"{file} is not a whole safetensors file: {error}") from error
    return {name: _finite(name, tensor.float()) for name, tensor in tensors.items()}


def copy_into(model: PreTrainedModel, tensors: dict[str, Tensor]) -> None:
    """Copy in place, so that tensors sharing memory with the parameters follow. Cannot fail half-way: verified before."""
    live = model.state_dict()
    for name, tensor in tensors.items():
        live[name].copy_(tensor)


def by_model_names(model: PreTrainedModel, model_path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the live model's names. Most architectures use the same names on disk; for others (fused experts),
    transformers loads the folder once more and maps the names."""
    live = model.state_dict()
    if all(name in live for name in tensors):
        return tensors
    fresh = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32, local_files_only=True)
    return dict(fresh.state_dict())


def _config(model_path: Path) -> dict[str, Any] | None:
    """As transformers reads it, so that older and newer spellings of a field compare equal."""
    if not (model_path / "config.json").is_file():
        return None
    try:
        config: dict[str, Any] = AutoConfig.from_pretrained(model_path, local_files_only=True).to_dict()
    except (ValueError, OSError, KeyError) as error:
        raise DataError(f"{model_path / 'config.json'} cannot be read: {error}") from error
    return config


def _verify_config(model_path: Path, expected: ExpectedCheckpoint) -> None:
    """A folder with only tensors is accepted; a config must give them the same meaning."""
    config = _config(model_path)
    if config is None:
        return
    for key in MEANINGFUL:
        if config.get(key) != expected.config.get(key):
            raise DataError(
                f"{model_path / 'config.json'}: {key} is {config.get(key)!r}; this engine serves {key} "
                f"{expected.config.get(key)!r}. Another architecture needs a separate engine."
            )


def _finite(name: str, tensor: Tensor) -> Tensor:
    if not torch.isfinite(tensor).all():
        raise DataError(f"tensor {name} holds NaN or infinite values")
    return tensor
