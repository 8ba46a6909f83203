"""Writes the trained adapters as a directory in PEFT's format, for PEFT and for engines that support adapters.

adapter_config.json, adapter_model.safetensors      `shared.weights.adapters` describes them
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from shared.weights.adapters import ADAPTER_WEIGHTS, MAGNITUDE, PREFIX, Adapter
from trainer.modeling.trainable import ADAPTER, lora_layers
from trainer.process.parallel import Parallel
from trainer.publishing.whole_state import of_all_stages, whole_state
from trainer.settings.trained_parts import LoraSettings


def gather_adapter(model: nn.Module, parallel: Parallel) -> dict[str, torch.Tensor]:
    """The adapters' full tensors on rank 0 (elsewhere empty), on the CPU, by PEFT's names. Every rank must call it."""
    full = whole_state(model, parallel, ignore_frozen=True)
    own = {PREFIX + _file_name(name): tensor.contiguous() for name, tensor in full.items() if ".lora_" in name}
    return of_all_stages(own, parallel)


def _file_name(name: str) -> str:
    """PEFT's, of a parameter of its layer: without the adapter's name, and a magnitude without `weight`."""
    return name.replace(f"{MAGNITUDE}.{ADAPTER}.weight", MAGNITUDE).replace(f".{ADAPTER}.weight", ".weight")


def write_adapter(
    folder: Path, model: PreTrainedModel, state: dict[str, torch.Tensor], lora: LoraSettings, base: Path
) -> Adapter:
    """Write `state` to the empty directory `folder` and return its description. `base`: the model it belongs to."""
    import peft  # imported here: it takes seconds, which training without adapters does not need

    folder.mkdir(exist_ok=True)
    config = peft.LoraConfig(
        r=lora.lora_rank,
        lora_alpha=lora.lora_alpha,  # type: ignore[arg-type]  # PEFT takes numbers, and says int
        use_rslora=lora.use_rslora,
        use_dora=lora.use_dora,
        lora_dropout=lora.lora_dropout,
        target_modules=_short_names(model),
        bias="none",
        task_type=peft.TaskType.CAUSAL_LM,
        base_model_name_or_path=str(base.resolve()),
        inference_mode=True,
    )
    config.save_pretrained(str(folder))
    save_file(state, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    return Adapter.parse(folder, {path.name: path.read_bytes() for path in folder.iterdir()})


def _short_names(model: nn.Module) -> list[str]:
    """The ends of the layers' names, as engines expect them, if they are unambiguous; else the full names."""
    layers = lora_layers(model).keys()
    ends = {name.rpartition(".")[2] for name in layers}
    alike = {
        name for name, layer in model.named_modules() if name.rpartition(".")[2] in ends and hasattr(layer, "weight")
    }
    return sorted(ends if alike == set(layers) else layers)
