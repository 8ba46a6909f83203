"""Atomically writes the trained weights as a Hugging Face directory for transformers and SGLang.

    gather full tensors of each stage ─▶ merge adapters ─▶ all on rank 0 ─▶ model.safetensors + config + tokenizer in DIR.tmp-xxxx
        ─▶ fsync ─▶ rename to DIR

A directory with the final name is complete: a kill leaves at most a temporary one next to it, which the next write of the
same name removes.
"""

import json
import logging
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from shared.documents.run import FileEntry
from shared.weights.files import WEIGHTS_FILE, manifest_of
from trainer.checkpoints.atomic_directories import write_directory_atomically
from trainer.modeling.model import DTYPES
from trainer.modeling.quantized_base import four_bit_weights
from trainer.modeling.trainable import merged, scaling_of
from trainer.process.parallel import Parallel
from trainer.publishing.whole_state import holds_whole, of_all_stages, whole_state

log = logging.getLogger(__name__)

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".index.json", ".gguf", ".h5", ".msgpack")


@dataclass(frozen=True, slots=True)
class WrittenWeights:
    """The result of a write; the same on every rank."""

    path: Path
    manifest: dict[str, FileEntry]
    total_bytes: int
    seconds: float


def write_weights(
    model: PreTrainedModel, source: Path, target: Path, parallel: Parallel, *, dtype: str | None = None
) -> WrittenWeights:
    """Write the sharded `model` to the new directory `target`, with the other files of the directory it was loaded from.

    Every rank must call it. `dtype` None keeps the parameters' type. Raises FileExistsError if `target` exists.
    """
    started = time.monotonic()
    state = gather_state(model, parallel, DTYPES[dtype] if dtype else None)
    written: WrittenWeights | None = None
    if parallel.is_main:
        write_directory_atomically(target, lambda temporary: write_files(temporary, source, model, state))
        manifest = manifest_of(target)
        total = sum(entry["bytes"] for entry in manifest.values())
        written = WrittenWeights(target, manifest, total, time.monotonic() - started)
        log.info("weights written path=%s bytes=%d seconds=%.2f", target, total, written.seconds)
    result = parallel.broadcast_object(written)
    assert isinstance(result, WrittenWeights)
    return result


def gather_state(model: PreTrainedModel, parallel: Parallel, dtype: torch.dtype | None) -> dict[str, torch.Tensor]:
    """Full tensors on rank 0 (elsewhere empty), on the CPU, with merged adapters, under the names in the loaded files.

    In memory all experts of a layer are one tensor, in files each has its own; engines expect the file layout. Of tied
    parameters only the first is kept: loading ties the others again.
    """
    full = whole_state(model, parallel)
    if not holds_whole(parallel):
        return {}
    full |= four_bit_weights(model, model.dtype)
    tied = _tied_away(model)
    tensors = {name: tensor for name, tensor in full.items() if name not in tied}
    own = {
        name: (tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor).contiguous()
        for name, tensor in revert_weight_conversion(model, merged(tensors, scaling_of(model))).items()
    }
    return of_all_stages(own, parallel)


def _tied_away(model: nn.Module) -> set[str]:
    """Names that share their parameter with an earlier one; safetensors refuses shared memory."""
    first: set[int] = set()
    away = set()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            away.add(name)
        first.add(id(parameter))
    return away


def copy_other_files(source: Path, target: Path) -> None:
    """All of a Hugging Face directory but the weights: configuration, tokenizer, template."""
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.name.endswith(WEIGHT_SUFFIXES) and not path.name.startswith("."):
            shutil.copyfile(path, target / path.name)


def write_files(temporary: Path, source: Path, model: PreTrainedModel, state: dict[str, torch.Tensor]) -> None:
    """The files of a Hugging Face directory with the weights `state`, into the directory `temporary`."""
    copy_other_files(source, temporary)
    save_file(state, temporary / WEIGHTS_FILE, metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["dtype"] = str(next(iter(state.values())).dtype).removeprefix("torch.")
    config.pop("torch_dtype", None)
    config["tie_word_embeddings"] = bool(getattr(model.config, "tie_word_embeddings", False))
    (temporary / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
