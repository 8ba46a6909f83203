"""Loads new weights from disk in two steps: read and verify (any thread, without changing the model), then copy.

A checkpoint is accepted only if its files are complete, its tensors are exactly those the engine started with, of the same
shapes, floating point and finite, and its config describes the same architecture. SGLang crashes on a truncated file or a wrong
shape, and reports success despite missing tensors; here each is an error message.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from hashlib import sha256
from io import FileIO
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sampler.engine.loading.checkpoint import ExpectedCheckpoint
from sampler.engine.loading.finite import all_finite
from sampler.engine.local.model_class import model_class
from shared.errors import DataError
from shared.weights.layout import weight_files
from shared.weights.tensor_file import tensors_of

PREFIXES = {
    "model.": "model.language_model.",
    "visual.": "model.visual.",
}  # Qwen2.5-VL's on disk: in transformers' model


def read_checkpoint(model_path: Path, expected: ExpectedCheckpoint) -> dict[str, Tensor]:
    """The verified float32 tensors of the folder. Raises DataError with the found and expected values."""
    expected.check(model_path)
    tensors = {name: tensor for file in weight_files(model_path) for name, tensor in _read(file).items()}
    return {name: _finite(name, tensor.float()) for name, tensor in tensors.items()}


def _read(file: Path) -> dict[str, Tensor]:
    """One buffer of the whole file, and its tensors as views. It is read, not mapped: the file may change meanwhile."""
    try:
        content = torch.empty(file.stat().st_size, dtype=torch.uint8)
        view = content.numpy().data
        with file.open("rb", buffering=0) as opened:
            _fill(view, opened)
    except OSError as error:
        raise DataError(f"{file} is not a whole safetensors file: {error}") from error
    return {
        tensor.name: _typed(content[tensor.start : tensor.end], getattr(torch, tensor.dtype)).reshape(tensor.shape)
        for tensor in tensors_of(file, view)
    }


def _fill(view: memoryview, opened: FileIO) -> None:
    """Raises OSError if the file has become shorter."""
    reached = 0
    while reached < len(view) and (count := opened.readinto(view[reached:])):
        reached += count
    if reached < len(view):
        raise OSError(f"it ended after {reached} bytes; expected {len(view)}")


def _typed(content: Tensor, dtype: torch.dtype) -> Tensor:
    """Of a file whose header is not padded, a tensor may begin where its type may not: a copy then."""
    aligned = content.storage_offset() % dtype.itemsize == 0
    return (content if aligned else content.clone()).view(dtype)


def copy_into(model: PreTrainedModel, tensors: dict[str, Tensor]) -> None:
    """Copy in place, so that tensors sharing memory with the parameters follow. Cannot fail half-way: verified before."""
    live = model.state_dict()
    for name, tensor in tensors.items():
        live[name].copy_(tensor)


def checksum_of(model: PreTrainedModel) -> str:
    """SHA-256 over names and bytes of all tensors."""
    digest = sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


def by_model_names(model: PreTrainedModel, model_path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the live model's names. Most architectures use the same names on disk; for others (fused experts),
    transformers loads the folder once more and maps the names."""
    live = model.state_dict()
    tensors = renamed(tensors, live)
    if all(name in live for name in tensors):
        return tensors
    fresh = model_class(model_path).from_pretrained(model_path, dtype=torch.float32, local_files_only=True)
    return dict(fresh.state_dict())


def renamed(tensors: dict[str, Tensor], live: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under the live model's names, as far as `live_name` knows them."""
    return {live_name(name, live): tensor for name, tensor in tensors.items()}


def live_name(name: str, live: Container[str]) -> str:
    """The live model's name of what files call `name`; `name` itself where there is none."""
    if name not in live:
        for on_disk, in_model in PREFIXES.items():
            if name.startswith(on_disk) and in_model + name.removeprefix(on_disk) in live:
                return in_model + name.removeprefix(on_disk)
    return name


def _finite(name: str, tensor: Tensor) -> Tensor:
    if not all_finite(tensor):
        raise DataError(f"tensor {name} holds NaN or infinite values")
    return tensor
