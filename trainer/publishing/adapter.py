"""Writes the trained adapters as a directory in PEFT's format, for PEFT and for engines that support adapters.

adapter_config.json, adapter_model.safetensors      `shared.weights.adapters` describes them
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from shared.weights.adapters import ADAPTER_WEIGHTS, MAGNITUDE, PREFIX, Adapter
from trainer.modeling.trainable import ADAPTER, lora_layers
from trainer.process.parallel import Parallel
from trainer.publishing.whole_state import of_all_stages, whole_state
from trainer.settings.trained_parts import LoraSettings


@dataclass(frozen=True, slots=True)
class AdaptedLayers:
    """The layers with an adapter, of all stages. `shapes`: (outputs, inputs) of their matrices, by name.

    `targets`: PEFT's `target_modules`: the ends of the names, as engines expect them, if these are unambiguous; else the names.
    """

    shapes: Mapping[str, tuple[int, int]]
    targets: Sequence[str]

    @classmethod
    def of(cls, model: nn.Module, parallel: Parallel) -> "AdaptedLayers":
        """Every rank must call it."""
        adapted = {name: (layer.weight.shape[0], layer.weight.shape[1]) for name, layer in lora_layers(model).items()}
        own = (adapted, [name for name, module in model.named_modules() if hasattr(module, "weight")])
        stages = [own] if parallel.pipeline is None else parallel.pipeline.peers.gather_objects(own)
        shapes = {name: shape for of_stage, _ in stages for name, shape in of_stage.items()}
        ends = {_end(name) for name in shapes}
        alike = {name for _, weighted in stages for name in weighted if _end(name) in ends}
        return cls(shapes, sorted(ends if alike == set(shapes) else shapes))


def _end(name: str) -> str:
    return name.rpartition(".")[2]


def gather_adapter(model: nn.Module, parallel: Parallel) -> dict[str, torch.Tensor]:
    """The adapters' full tensors on rank 0 (elsewhere empty), on the CPU, by PEFT's names. Every rank must call it."""
    full = whole_state(model, parallel, ignore_frozen=True)
    own = {PREFIX + _file_name(name): tensor.contiguous() for name, tensor in full.items() if ".lora_" in name}
    return of_all_stages(own, parallel)


def _file_name(name: str) -> str:
    """PEFT's, of a parameter of its layer: without the adapter's name, and a magnitude without `weight`."""
    return name.replace(f"{MAGNITUDE}.{ADAPTER}.weight", MAGNITUDE).replace(f".{ADAPTER}.weight", ".weight")


def write_adapter(
    folder: Path, targets: Sequence[str], state: dict[str, torch.Tensor], lora: LoraSettings, base: Path
) -> Adapter:
    """Write `state` to the empty directory `folder` and return its description. `targets`: those of `AdaptedLayers`; `base`: the
    model it belongs to.
    """
    import peft  # imported here: it takes seconds, which training without adapters does not need

    folder.mkdir(exist_ok=True)
    config = peft.LoraConfig(
        r=lora.lora_rank,
        lora_alpha=lora.lora_alpha,  # type: ignore[arg-type]  # PEFT takes numbers, and says int
        use_rslora=lora.use_rslora,
        use_dora=lora.use_dora,
        lora_dropout=lora.lora_dropout,
        target_modules=list(targets),
        bias="none",
        task_type=peft.TaskType.CAUSAL_LM,
        base_model_name_or_path=str(base.resolve()),
        inference_mode=True,
    )
    config.save_pretrained(str(folder))
    save_file(state, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    return Adapter.parse(folder, {path.name: path.read_bytes() for path in folder.iterdir()})
