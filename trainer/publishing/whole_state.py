"""Full tensors of a sharded model on one process, in host memory: of this stage, then of all stages on rank 0."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor

from trainer.process.parallel import Parallel

State = dict[str, torch.Tensor]


def holds_whole(parallel: Parallel) -> bool:
    """Whether `whole_state` returns tensors here: the first process of each stage."""
    return parallel.is_main if parallel.pipeline is None else parallel.pipeline.stage.rank == 0


def whole_state(model: nn.Module, parallel: Parallel, *, ignore_frozen: bool = False) -> State:
    """Full tensors of this process's stage, on its first process (elsewhere empty). Every rank must call it."""
    if parallel.pipeline is None:
        options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=ignore_frozen)
        state = get_model_state_dict(model, options=options)
        return {name: tensor for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}
    whole: State = {}
    # torch's own option gives them to rank 0 of the launch alone, which has another stage
    for name, value in get_model_state_dict(
        model, options=StateDictOptions(ignore_frozen_params=ignore_frozen)
    ).items():
        tensor = _full(value, parallel.device) if isinstance(value, DTensor) else value
        if holds_whole(parallel) and isinstance(tensor, torch.Tensor):
            whole[name] = tensor.detach().cpu()
    return whole


def _full(tensor: DTensor, device: torch.device) -> torch.Tensor:
    """Every process that has a shard must call it. On `device`, since shards may lie on the host (`optimizer_offload`)."""
    moved = tensor.to(device)
    assert isinstance(moved, DTensor)
    return moved.full_tensor()


def of_all_stages(own: State, parallel: Parallel) -> State:
    """All stages' tensors on rank 0 (elsewhere empty), one tensor at a time. Of a name that two stages have the first one's."""
    if parallel.pipeline is None or not holds_whole(parallel):
        return own
    peers, group = parallel.pipeline.peers, parallel.pipeline.backwards
    stages = peers.gather_objects({name: (tensor.shape, tensor.dtype) for name, tensor in own.items()})
    known = set(stages[0])
    for source, tensors in enumerate(stages[1:], 1):
        for name, (shape, dtype) in tensors.items():
            if name in known:
                continue
            if peers.rank == source:
                dist.send(own[name].contiguous(), group=group, group_dst=0)
            elif peers.rank == 0:
                own[name] = torch.empty(shape, dtype=dtype)
                dist.recv(own[name], group=group, group_src=source)
        known |= set(tensors)
    return own if peers.rank == 0 else {}
