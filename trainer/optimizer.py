"""AdamW, its settings, and norms over parameters that are sharded in different ways."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from trainer.modeling.forward import TreeLM
from trainer.parallel import Parallel
from trainer.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its schedule. Weight decay is for matrices only, not for norms."""

    learning_rate: float = 1e-6
    lr_schedule: Schedule = "constant"
    warmup_steps: int = 0
    max_steps: int = 1000  # where a falling schedule reaches its floor
    min_lr_ratio: float = 0.1
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0  # 0: no clipping


def by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters apart by the mesh they are cut over: operations on many at once want them alike."""
    kinds: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in parameters:
        kinds.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(parameter)
    return list(kinds.values())


def total_norm(gradients: Sequence[torch.Tensor]) -> float:
    norm = torch.nn.utils.get_total_norm(gradients)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def adamw(lm: TreeLM, config: OptimizerConfig, parallel: Parallel) -> torch.optim.AdamW:
    trained = [p for p in lm.parameters() if p.requires_grad]
    decays = {True: config.weight_decay, False: 0.0}
    groups = [
        {"params": kind, "weight_decay": decay}
        for is_matrix, decay in decays.items()
        for kind in by_mesh(p for p in trained if (p.ndim >= 2) is is_matrix)
    ]
    return torch.optim.AdamW(
        groups,
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        fused=parallel.device.type == "cuda" and not parallel.settings.offload_params,
    )
