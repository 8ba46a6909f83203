"""AdamW, and norms over parameters that are sharded in different ways."""

from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from trainer.modeling.forward import TreeLM
from trainer.process.parallel import Parallel
from trainer.settings.optimizer import OptimizerConfig


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
