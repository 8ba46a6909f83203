"""Tensor parallelism: splits the layers' matrices over the processes of the mesh's "tp" dimension, by the model's plan.

    q k v gate up   by columns: each process has some heads and hidden units
    o down          by rows: the parts are summed, and each process has a slice of the tokens, or, in models
                    that need whole rows between the blocks, all of them (`sequence_parallel.py`)
    q_norm k_norm   whole, on this process's heads; their gradients are summed
    adapters        as their layer: of one cut by columns B by columns, of one cut by rows A by rows, and the parts of A x are
                    summed; the other factor is whole, and sees the same values and gradients on every process
    experts         each on one process, which computes it for the tokens that chose it; the parts are summed
    all others      replicated: norms, embedding, head, routers

The split parameters are DTensors; `fully_shard` also shards them over the mesh's "shard" dimension.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from transformers import PretrainedConfig, PreTrainedModel
from transformers.distributed.expert_parallel import EpDispatchExpertsParallel, MoEParamShard

from shared.errors import ConfigError
from trainer.modeling.expert_parallel import DISPATCHED, OF_EXPERTS, expert_modules
from trainer.modeling.quantized_base import FourBitLinear
from trainer.modeling.sequence_parallel import by_module, layer_plans, use_slices
from trainer.modeling.trainable import ADAPTER, LoraLayer, lora_layers
from trainer.process.peers import peers_of
from trainer.process.private_apis import experts_kernel, silence_redistribution
from trainer.process.sharding import is_empty

silence_redistribution()
HEADS_DIM = 2  # of (batch, token, head, head_dim), the input of the per-head norms
_PARTS_OF_ADAPTED = {  # of PEFT's layer, by the split of its base
    "colwise": [".base_layer", f".lora_B.{ADAPTER}"],
    "rowwise": [".base_layer", f".lora_A.{ADAPTER}"],
}


def check_plan(config: PretrainedConfig, size: int) -> None:
    """Before any weight is read. Raises ConfigError for a plan that cuts two matrices of one block by rows (Doge): the sum of the
    first has all heads, and what it meets has those of one process.
    """
    plan: Mapping[str, str] = getattr(config, "base_model_tp_plan", None) or {}
    blocks = [name.rpartition(".")[0] for name, split in plan.items() if split == "rowwise"]
    twice = next((block for block in blocks if blocks.count(block) > 1), None)
    if size > 1 and twice:
        raise ConfigError(
            f"model type {config.model_type}: its plan cuts two matrices of {twice} by rows; expected tp_size 1, found {size}"
        )


def cut_layers(model: PreTrainedModel, mesh: DeviceMesh, device: torch.device, *, with_experts: bool = True) -> None:
    """Move `model` to the device, unless it is empty, and split its layers in place over the 1-D `mesh`. One process: no-op.

    Call before `shard_model`. `with_experts` False: they are split already (`spread_experts`).

    Raises ConfigError for a model with adapters that cannot be split (`_check_adapters`), without a plan, with an unsupported
    plan, with heads or experts that cannot be split evenly, or with eager experts.
    """
    if mesh.size() == 1:
        return
    adapted = lora_layers(model)
    _check_adapters(adapted, mesh.size())
    _check_heads(model, mesh.size())
    if with_experts:
        _check_kernel(model, mesh.size())
    if not is_empty(model):
        nn.Module.to(model, device)
    plan = _plan(model, with_experts=with_experts)
    # by full names: with unequal layers a pattern would name missing parameters
    modules = {name: _anywhere(name) for name, _ in model.base_model.named_modules()}
    for key in (_anywhere(name) for name, _ in model.base_model.named_parameters() if ".lora_" not in name):
        if plan.get(key, OF_EXPERTS) != OF_EXPERTS:  # a separately split parameter
            raise _unknown_cut(model, key, plan[key])
    inside = {name for name, module in model.base_model.named_modules() if module in adapted.values()}
    slices = layer_plans(model, {name: plan[key] for name, key in modules.items() if key in plan}, adapted)
    placed = {f"{layer}.{name}": of for layer, each in (slices or {}).items() for name, of in each.placements.items()}
    styles: dict[str, ParallelStyle] = {name: _Placed(of) for name, of in by_module(placed).items()}
    for name, key in modules.items():
        if key in plan and not any(part == name or part.startswith(f"{name}.") for part in styles):
            parts = _PARTS_OF_ADAPTED.get(plan[key], [""]) if name in inside else [""]
            styles |= {name + part: _style(model, key, plan) for part in parts}
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    parallelize_module(model.base_model, mesh, styles)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained[name])  # some styles make new parameters, which would be trained
    if slices:
        use_slices(model, slices, peers_of(mesh, device))


class _Placed(ParallelStyle):
    """A module's parameters as DTensors, which a layer uses as local tensors (`sequence_parallel`)."""

    def __init__(self, placements: Mapping[str, Placement]) -> None:
        self._placements = placements

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, placement in self._placements.items():
            own = getattr(module, name)
            if own is not None:
                placed = distribute_tensor(own.detach(), device_mesh, [placement], src_data_rank=None)
                module.register_parameter(name, nn.Parameter(placed, requires_grad=own.requires_grad))
        return module


def _check_adapters(adapted: Mapping[str, LoraLayer], size: int) -> None:
    """Raises ConfigError for adapters whose split parts would not compute what the whole computes."""
    for layer in adapted.values():
        reason = None
        if layer.lora_magnitude_vector:
            reason = "use_dora is on: the lengths of rows that are split come from all parts, which PEFT's layer does not add"
        elif isinstance(layer.base_layer, FourBitLinear):
            reason = "base_quantization is nf4: every process holds all codes of the base"
        elif any(isinstance(dropout, nn.Dropout) for dropout in layer.lora_dropout.values()):
            reason = "lora_dropout is above 0: processes that share a layer would leave different inputs out"
        if reason:
            raise ConfigError(
                f"tp_size is {size}, and {reason}; expected plain adapters (lora_rank alone), or tp_size 1"
            )


def _plan(model: PreTrainedModel, *, with_experts: bool) -> dict[str, str]:
    """{"layers.*.mlp.experts": split}. If the model can be split between experts, single experts are not split."""
    plan = getattr(model.config, "base_model_tp_plan", None)
    if not plan:
        raise ConfigError(
            f"model type {model.config.model_type} has no plan for tensor parallelism; expected tp_size 1"
        )
    of_experts = getattr(model.config, "base_model_ep_plan", None) or {}
    return {**plan, **of_experts} if with_experts else {key: cut for key, cut in plan.items() if key not in of_experts}


def _anywhere(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)


def _style(model: nn.Module, name: str, plan: Mapping[str, str]) -> ParallelStyle:
    cut = plan[name]
    match cut:
        case "colwise":
            return ColwiseParallel()
        case "rowwise":
            return RowwiseParallel()
        case "replicated_with_grad_allreduce":
            return SequenceParallel(sequence_dim=HEADS_DIM, use_local_output=True)
        case _ if cut == DISPATCHED:
            inside = {key.removeprefix(f"{name}."): value for key, value in plan.items() if key.startswith(f"{name}.")}
            return _WholeExperts([key for key, value in inside.items() if value == OF_EXPERTS])
    raise _unknown_cut(model, name, cut)


def _unknown_cut(model: nn.Module, name: str, cut: str) -> ConfigError:
    return ConfigError(
        f"{type(model).__name__}: its plan cuts {name} as {cut!r}; expected colwise, rowwise, replicated or whole experts: "
        "tp_size 1 is needed"
    )


class _WholeExperts(ParallelStyle):
    """Splits transformers' module between experts, on our mesh. Raises ConfigError if they cannot be split evenly."""

    def __init__(self, parameters: list[str]) -> None:
        self._parameters = parameters

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        num_experts: Any = module.num_experts
        if num_experts % device_mesh.size():
            raise ConfigError(
                f"tp_size is {device_mesh.size()}, but num_experts is {num_experts}; expected a divisor of it"
            )
        for name in self._parameters:
            MoEParamShard(Shard(0), shards_expert_dim=True).shard_param(module, name, device_mesh)
        cut: nn.Module = EpDispatchExpertsParallel().install_forward(
            module, device_mesh, tp_mesh=device_mesh, ep_implementation="all_reduce"
        )
        return cut


def _check_kernel(model: PreTrainedModel, size: int) -> None:
    """Raises ConfigError for experts whose results depend on no token where none chose them: their process would take no part in
    the sum of gradients.
    """
    if expert_modules(model) and experts_kernel(model) == "eager":
        raise ConfigError(
            f"tp_size is {size}, and experts_implementation of model type {model.config.model_type} is eager; expected "
            "grouped_mm or batched_mm, ep_size above 1, or tp_size 1"
        )


def _check_heads(model: PreTrainedModel, size: int) -> None:
    for name in ("num_attention_heads", "num_key_value_heads"):
        count = getattr(model.config, name, size)  # GPT-NeoX: as many key heads as query heads, without a name
        if count % size:
            raise ConfigError(f"tp_size is {size}, but {name} is {count}; expected a divisor of it")
