"""Adafactor (Shazeer and Stern 2018, arXiv 1804.04235) with a learning rate of its own, for sharded parameters too.

    b = 1 − t^−0.8
    V of a matrix, by its last two dimensions: R C / mean of R, R ← b R + (1 − b) · mean over columns of (g² + 1e-30), C likewise
    V of anything else: V ← b V + (1 − b)(g² + 1e-30)
    u = g / √V            p ← p − rate · u / max(1, rms of u) − rate · weight decay · p

Without momentum, so that the state of an n × m matrix is n + m numbers. PyTorch's and transformers' own do not step DTensors.
"""

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import Optimizer

DECAY, LEAST, CLIP = 0.8, 1e-30, 1.0


class Adafactor(Optimizer):
    def __init__(self, groups: list[dict[str, Any]], lr: float) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        assert closure is None, "a step is computed from gradients that are there"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, _exact(parameter.grad), group["lr"], group["weight_decay"])
        return None

    def _step(self, parameter: Tensor, gradient: Tensor, rate: float, weight_decay: float) -> None:
        state = self.state[parameter]
        state["step"] = state.get("step", torch.zeros((), dtype=torch.float32)) + 1
        keep = 1.0 - float(state["step"]) ** -DECAY
        squares = gradient.square() + LEAST

        def averaged(name: str, new: Tensor) -> Tensor:
            state[name] = keep * state[name] + (1 - keep) * new if name in state else (1 - keep) * new
            found: Tensor = state[name]
            return found

        if gradient.ndim >= 2:
            rows = averaged("rows", _replicated(squares.mean(-1, keepdim=True)))
            columns = averaged("columns", _replicated(squares.mean(-2, keepdim=True)))
            update = gradient * (rows / rows.mean(-2, keepdim=True)).rsqrt() * columns.rsqrt()
        else:
            update = gradient * averaged("squares", squares).rsqrt()
        size = float(_replicated(update.square().mean())) ** 0.5
        if weight_decay:
            parameter.mul_(1 - rate * weight_decay)
        parameter.sub_(_placed_as(parameter, update * (rate / max(1.0, size / CLIP))).to(parameter.dtype))


def _exact(gradient: Tensor) -> Tensor:
    return gradient.to(torch.promote_types(gradient.dtype, torch.float32))


def _placed_as(parameter: Tensor, update: Tensor) -> Tensor:
    """DTensor computes whole tensors where a dimension is smaller than the number of its shards."""
    if not isinstance(parameter, DTensor) or not isinstance(update, DTensor):
        return update
    return update.redistribute(placements=parameter.placements)


def _replicated(tensor: Tensor) -> Tensor:
    """The same tensor, whole on every rank."""
    return (
        tensor.redistribute(placements=[Replicate()] * tensor.device_mesh.ndim)
        if isinstance(tensor, DTensor)
        else tensor
    )
