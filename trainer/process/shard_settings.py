"""The FSDP2 settings of the launch (`assets/fsdp2.yml`), read back through Accelerate's plugin."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from accelerate.utils import FullyShardedDataParallelPlugin
from torch.distributed.fsdp import CPUOffloadPolicy

PRECISIONS = {"no": None, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """The FSDP2 settings in force; `layer_classes` empty means the layers that the model itself names."""

    precision: str = "no"
    reshard_after_forward: bool = True
    layer_classes: tuple[str, ...] = ()
    offload_params: bool = False
    activation_checkpointing: bool = False
    forward_prefetch: bool = False  # a layer requests the next layer's parameters before it computes
    first_loads: bool = False  # only the first process reads the weights' files (trainer/modeling/sharded_loading.py)


def read_shard_settings(environment: Mapping[str, str]) -> ShardSettings:
    """The settings passed by `accelerate launch`, parsed by Accelerate; its FSDP2 defaults for a single process.

    Raises ValueError for settings that this trainer does not support.
    """
    if environment.get("ACCELERATE_USE_FSDP", "false").lower() == "true" and environment.get("FSDP_VERSION") != "2":
        raise ValueError(f"fsdp_version is {environment.get('FSDP_VERSION')!r}; expected 2, as in assets/fsdp2.yml")
    precision = environment.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in PRECISIONS:
        raise ValueError(f"mixed_precision is {precision!r}; expected one of {', '.join(PRECISIONS)}")
    backward_prefetch = environment.get("FSDP_BACKWARD_PREFETCH", "BACKWARD_PRE")
    if backward_prefetch != "BACKWARD_PRE":
        raise ValueError(f"fsdp_backward_prefetch is {backward_prefetch!r}; expected BACKWARD_PRE: FSDP2 has no other")
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    return ShardSettings(
        precision=precision,
        reshard_after_forward=bool(plugin.reshard_after_forward),
        layer_classes=tuple(name.strip() for name in plugin.transformer_cls_names_to_wrap or ()),
        offload_params=isinstance(plugin.cpu_offload, CPUOffloadPolicy),
        activation_checkpointing=bool(plugin.activation_checkpointing),
        forward_prefetch=environment.get("FSDP_FORWARD_PREFETCH", "false").lower() == "true",
        first_loads=bool(plugin.cpu_ram_efficient_loading),
    )
