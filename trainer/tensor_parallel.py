"""Tensor parallelism: the layers' matrices are cut over the processes of the mesh's "tp" dimension, by the model's own plan.

    q k v gate up   by columns: each process has its heads, its part of the hidden units
    o down          by rows: the parts are summed, so that every process goes on with the same hidden states
    q_norm k_norm   whole, on this process's heads; their gradients are summed
    all the rest    whole and computed alike on every process: norms, embedding, head

The cut parameters are DTensors of PyTorch; `fully_shard` cuts them again over the mesh's "shard" dimension.
"""

import logging

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from transformers import PreTrainedModel

from shared.errors import ConfigError
from trainer.parallel import is_empty
from trainer.trainable import lora_layers

# It warns of every redistribution over two dimensions, which are those of a checkpoint, a publication and a gradient norm.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
HEADS_DIM = 2  # of (batch, token, head, head_dim), which the per-head norms see


def cut_layers(model: PreTrainedModel, mesh: DeviceMesh, device: torch.device) -> None:
    """Move `model` to the device, unless it is still empty, and cut its layers in place over the 1-D `mesh`. One process: no-op.

    Call before `shard_model`.

    Raises ConfigError for a model with adapters, without a plan, with a plan of other kinds of cuts (experts), or with heads that
    cannot be shared out evenly.
    """
    if mesh.size() == 1:
        return
    if lora_layers(model):
        raise ConfigError(
            f"tp_size is {mesh.size()} and the model has adapters, which are not cut; expected lora_rank 0, or tp_size 1"
        )
    _check_heads(model, mesh.size())
    if not is_empty(model):
        model.to(device)
    parallelize_module(model.base_model, mesh, {name: _style(model, name, cut) for name, cut in _plan(model).items()})


def _plan(model: PreTrainedModel) -> dict[str, str]:
    plan = getattr(model.config, "base_model_tp_plan", None)
    if not plan:
        raise ConfigError(
            f"model type {model.config.model_type} has no plan for tensor parallelism; expected tp_size 1"
        )
    return dict(plan)


def _style(model: nn.Module, name: str, cut: str) -> ParallelStyle:
    match cut:
        case "colwise":
            return ColwiseParallel()
        case "rowwise":
            return RowwiseParallel()
        case "replicated_with_grad_allreduce":
            return SequenceParallel(sequence_dim=HEADS_DIM, use_local_output=True)
    raise ConfigError(
        f"{type(model).__name__}: its plan cuts {name} as {cut!r}; expected colwise, rowwise or replicated: tp_size 1 is needed"
    )


def _check_heads(model: PreTrainedModel, size: int) -> None:
    for name in ("num_attention_heads", "num_key_value_heads"):
        count = getattr(model.config, name)
        if count % size:
            raise ConfigError(f"tp_size is {size}, but {name} is {count}; expected a divisor of it")
