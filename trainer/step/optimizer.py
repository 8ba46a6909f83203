"""The optimizers by name, and norms over parameters that are sharded in different ways.

    adamw        two moments of each parameter, in its own type
    adamw_8bit   the same moments in 8 bits (`trainer/step/adamw_8bit.py`); adamw for small parameters
    adafactor    the second moment of a matrix as sums over its rows and columns (`trainer/step/adafactor.py`)
    muon         a momentum, made orthogonal, of the matrices inside the layers (PyTorch's; its updates are scaled as in arXiv
                 2502.16982, so that AdamW's learning rates fit); adamw for embedding, head, norms and biases

Bytes of state for each trained number in float32: 8, 2, almost 0, 4.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from shared.errors import ConfigError
from trainer.modeling.forward import TreeLM
from trainer.process.parallel import Parallel
from trainer.settings.optimizer import Optim, OptimizerConfig
from trainer.step.adafactor import Adafactor
from trainer.step.adamw_8bit import LEAST_NUMBERS, AdamW8bit

Groups = list[dict[str, Any]]


def by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters apart by the mesh they are cut over: operations on many at once want them alike."""
    kinds: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in parameters:
        kinds.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(parameter)
    return list(kinds.values())


def total_norm(gradients: Sequence[torch.Tensor]) -> float:
    norm = torch.nn.utils.get_total_norm(gradients)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def make_optimizers(lm: TreeLM, config: OptimizerConfig, parallel: Parallel) -> list[Optimizer]:
    """Together they have every trained parameter once; what the chosen one is not for has AdamW.

    Raises ConfigError for an optimizer that is not installed, or cannot step parameters of this type.
    """
    trained = [p for p in lm.parameters() if p.requires_grad]
    chosen = _suited(lm, trained, config.optim)
    others = [p for p in trained if id(p) not in {id(p) for p in chosen}]
    made = [_MAKERS[config.optim](_groups(chosen, config), config, parallel)] if chosen else []
    return made + ([_adamw(_groups(others, config), config, parallel)] if others else [])


def _suited(lm: TreeLM, trained: Sequence[nn.Parameter], optim: Optim) -> Sequence[nn.Parameter]:
    if optim == "adamw_8bit":
        return [p for p in trained if p.numel() >= LEAST_NUMBERS]
    if optim == "muon":
        ends = (lm.causal_lm.get_input_embeddings(), lm.causal_lm.get_output_embeddings())
        outside = {id(p) for layer in ends if layer is not None for p in layer.parameters()}
        return [p for p in trained if p.ndim == 2 and id(p) not in outside]
    return trained


def set_learning_rate(optimizers: Iterable[Optimizer], rate: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate


def _groups(parameters: Sequence[nn.Parameter], config: OptimizerConfig) -> Groups:
    """Weight decay is for matrices only, not for norms and biases."""
    decays = {True: config.weight_decay, False: 0.0}
    return [
        {"params": kind, "weight_decay": decay}
        for is_matrix, decay in decays.items()
        for kind in by_mesh(p for p in parameters if (p.ndim >= 2) is is_matrix)
    ]


def _adamw(groups: Groups, config: OptimizerConfig, parallel: Parallel) -> Optimizer:
    return torch.optim.AdamW(
        groups,
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        fused=not parallel.settings.offload_params,  # on a CPU a seventh of the time: one pass over what is read and written
    )


def _adamw_8bit(groups: Groups, config: OptimizerConfig, parallel: Parallel) -> Optimizer:
    if any(p.dtype == torch.float64 for group in groups for p in group["params"]):
        raise ConfigError("optim adamw_8bit: the parameters are float64; expected dtype float32 or bfloat16")
    return AdamW8bit(groups, config.learning_rate, (config.adam_beta1, config.adam_beta2), config.adam_epsilon)


def _adafactor(groups: Groups, config: OptimizerConfig, parallel: Parallel) -> Optimizer:
    return Adafactor(groups, config.learning_rate)


def _muon(groups: Groups, config: OptimizerConfig, parallel: Parallel) -> Optimizer:
    return muon(groups, config.learning_rate)


def muon(groups: Groups, rate: float) -> Optimizer:
    return torch.optim.Muon(groups, lr=rate, adjust_lr_fn="match_rms_adamw")


_MAKERS: Mapping[Optim, Callable[[Groups, OptimizerConfig, Parallel], Optimizer]] = {
    "adamw": _adamw,
    "adamw_8bit": _adamw_8bit,
    "adafactor": _adafactor,
    "muon": _muon,
}
