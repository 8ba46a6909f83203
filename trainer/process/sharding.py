"""The sharding of a model: one function over PyTorch's `fully_shard`, the same for gloo, NCCL and one process.

Accelerate's FSDP path does not exist on CPU, where it would silently train independent copies.
"""

from collections.abc import Collection
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

from trainer.process.expert_sharding import even_placement, shard_experts
from trainer.process.parallel import Parallel
from trainer.process.shard_settings import PRECISIONS


def shard_model(
    model: nn.Module,
    layer_classes: tuple[str, ...],
    parallel: Parallel,
    *,
    frozen: bool = False,
    experts: Collection[nn.Module] = (),
) -> None:
    """Move `model` to the device, unless it is still empty, and shard it in place: one group per layer, one for the rest.

    One process on a CPU, or one for each stage, has nothing to shard, and FSDP2 would copy each layer's parameters at every
    forward and backward, and its gradients once more: the model stays as it is there, unless its parameters are cast
    (`precision`).

    `layer_classes`: those that the model names (transformers' `_no_split_modules`); the launcher's settings win.
    Call before the optimizer is made: the parameters become DTensors. `frozen`: no backward will follow a forward.
    `experts`: modules whose parameters are sharded over the processes that hold the same experts (`parallel.experts`).
    Raises ValueError when no layer has such a class.
    """
    settings = parallel.settings
    names = settings.layer_classes or layer_classes
    layers = [module for module in model.modules() if type(module).__name__ in names]
    if not layers:
        classes = sorted({type(module).__name__ for module in model.modules()})
        raise ValueError(f"no layer of class {', '.join(names) or '(none named)'} to shard; the model has {classes}")
    if not settings.offload_params and not is_empty(model):
        model.to(parallel.device)
    options: dict[str, Any] = {
        "mesh": parallel.mesh["shard"],
        "reshard_after_forward": settings.reshard_after_forward,
        "shard_placement_fn": even_placement(parallel.mesh["shard"].size()),
    }
    param_dtype = PRECISIONS[settings.precision]
    if (
        parallel.stage_size == 1
        and parallel.device.type == "cpu"
        and param_dtype is None
        and not settings.offload_params
    ):
        return
    if param_dtype is not None:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=torch.float32)
    if settings.offload_params:
        options["offload_policy"] = CPUOffloadPolicy()
    same = parallel.experts["same"] if parallel.experts else parallel.mesh["shard"]
    inner = {module: shard_experts(module, same, options) for module in experts}
    # From the inside out: a layer may hold another one (Mamba's names both its block and the mixer in it).
    sharded = [fully_shard(layer, **options) for layer in reversed(layers)][::-1]
    if settings.forward_prefetch:
        for (_, layer), (module, following) in pairwise(zip(layers, sharded, strict=True)):
            inside = [inner[part] for part in module.modules() if part in inner]
            layer.set_modules_to_forward_prefetch([following, *inside])
    # The root's parameters (embedding, head, last norm) are needed again right after the forward: not freed between. Without
    # a backward nothing else would free them.
    fully_shard(model, **{**options, "reshard_after_forward": frozen})


def is_empty(model: nn.Module) -> bool:
    """Whether its parameters have no memory yet (`trainer/modeling/sharded_loading.py`)."""
    return all(parameter.is_meta for parameter in model.parameters())
