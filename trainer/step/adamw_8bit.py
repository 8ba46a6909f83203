"""AdamW whose two moments are 8-bit numbers with a scale for each block of 256 (Dettmers et al. 2021, arXiv 2110.02861).

The step is bitsandbytes' own; here it is made of what a rank holds of each sharded parameter. So the blocks begin anew in each
shard, and a checkpoint fits as many processes as wrote it.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, overload

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainer.process.eight_and_four_bits import bitsandbytes_functional

BLOCK = 256  # numbers with one scale; bitsandbytes' kernels have no other
LEAST_NUMBERS = 4096  # of a parameter: smaller ones, such as norms, keep exact moments (bitsandbytes' default, too)
OF_A_SHARD = ("codes1", "codes2", "scales1", "scales2")  # names of states: tensors of this rank's shard alone


class AdamW8bit(Optimizer):
    def __init__(self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float) -> None:
        """Raises ConfigError without bitsandbytes."""
        _maps("cpu")
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

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
                    self._step(parameter, group)
        return None

    def _step(self, parameter: Tensor, group: dict[str, Any]) -> None:
        own, gradient = _local(parameter), _local(parameter.grad).contiguous()
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            for moment in "12":
                state[f"codes{moment}"] = torch.zeros_like(own, dtype=torch.uint8)
                state[f"scales{moment}"] = torch.zeros(-(-own.numel() // BLOCK), device=own.device)
        state["step"] += 1
        if own.numel():
            signed, unsigned = _maps(str(own.device))
            torch.ops.bitsandbytes.optimizer_update_8bit_blockwise(
                *("adam", gradient, own, state["codes1"], state["codes2"], *group["betas"], 0.0, 0.0, group["eps"]),
                *(int(state["step"]), float(group["lr"]), signed, unsigned, state["scales1"], state["scales2"]),
                *(group["weight_decay"], 1.0, False),
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """torch makes all states the type of their parameter: codes and scales keep theirs."""
        super().load_state_dict(state_dict)
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        for key, parameter in zip(keys, parameters, strict=True):
            saved = state_dict["state"].get(key, {})
            self.state[parameter].update({name: saved[name].clone() for name in OF_A_SHARD if name in saved})


def _local(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@cache
def _maps(device: str) -> tuple[Tensor, Tensor]:
    """The values of the 256 codes: of numbers with a sign, and of those without."""
    functional = bitsandbytes_functional("optim adamw_8bit")
    return functional.create_dynamic_map(signed=True).to(device), functional.create_dynamic_map(signed=False).to(device)
