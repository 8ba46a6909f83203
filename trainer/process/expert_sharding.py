"""FSDP of experts: over the processes that hold the same ones, and evenly, where their number does not divide."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

EXPERT_DIMS = 3  # of a tensor with a matrix for each expert


def even_placement(shards: int) -> Callable[[nn.Parameter], Shard]:
    """The `shard_placement_fn` of `fully_shard`: parameters by rows; those of experts by the first dimension that `shards`
    divides.

    By experts alone FSDP2 would round up: of 128 experts 512 shards would hold one each, and all collectives would carry four
    times their bytes. Another dimension costs a copy of the gathered tensor, and one of its gradient.
    """

    def placement(parameter: nn.Parameter) -> Shard:
        held = parameter.to_local().shape if isinstance(parameter, DTensor) else parameter.shape
        even = [dim for dim, size in enumerate(held) if size % shards == 0]
        return Shard(even[0] if len(held) >= EXPERT_DIMS and even else 0)

    return placement


def shard_experts(module: nn.Module, same: DeviceMesh, options: Mapping[str, Any]) -> FSDPModule:
    """By expert, or by the rows of their matrices where `same` has no divisor of the experts that a process holds.

    `options`: of `fully_shard`, for the layer. The layer has cast the inputs already; a router's weights in float32 stay so.
    """
    mixed: MixedPrecisionPolicy | None = options.get("mp_policy")
    policy = {} if mixed is None else {"mp_policy": dataclasses.replace(mixed, cast_forward_inputs=False)}
    placement = even_placement(same.size())
    return fully_shard(module, **{**options, **policy, "mesh": same, "shard_placement_fn": placement})
