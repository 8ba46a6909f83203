"""FSDP of experts over the processes that hold the same ones: fewer than those over which all other parameters are sharded."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard


def shard_experts(module: nn.Module, same: DeviceMesh, options: Mapping[str, Any]) -> FSDPModule:
    """By expert, or by the rows of their matrices where a process holds fewer experts than `same` has processes.

    `options`: of `fully_shard`, for the layer. The layer has cast the inputs already; a router's weights in float32 stay so.
    """
    mixed: MixedPrecisionPolicy | None = options.get("mp_policy")
    policy = {} if mixed is None else {"mp_policy": dataclasses.replace(mixed, cast_forward_inputs=False)}

    def placement(parameter: nn.Parameter) -> Shard:
        assert isinstance(parameter, DTensor), "experts are spread before they are sharded"
        held, *widths = parameter.to_local().shape
        return Shard(1) if held < same.size() and widths and widths[0] % same.size() == 0 else Shard(0)

    return fully_shard(module, **{**options, **policy, "mesh": same}, shard_placement_fn=placement)
