"""Losses by name: those of this package, and a user's own, which a module of `loss_modules` registers.

    @register_loss("clipped_linear")
    def clipped_linear(t: Terms, config: LossConfig) -> Tensor:
        return -t.advantage_E * t.log_rho_E.clamp(max=config.epsilon_higher)

A loss gives one value per entry, with gradient. `compute` weighs them by ω, corrects, adds KL and entropy, and sums.
A mistake in a user's loss names its line; a wrong shape and values that are not finite are refused.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from trainer.losses.entries import TokenLoss
from trainer.losses.ratios import Terms
from trainer.losses.settings import LOSSES, LossConfig

LossFunction = Callable[[Terms, LossConfig], Tensor | TokenLoss]
F = TypeVar("F", bound=LossFunction)


def register_loss(name: str, *, whole_trajectories: bool = False) -> Callable[[F], F]:
    """Decorator. `whole_trajectories`: the value at an entry depends on other entries of the trajectory.

    Such a loss gets all entries of a trajectory together, at the price of one more forward where they lie in several rows.
    Registering the same function again is harmless; another one under a known name is a ConfigError.
    """

    def register(function: F) -> F:
        LOSSES.add(name, function, whole_trajectories=whole_trajectories)
        return function

    return register


def token_loss(t: Terms, config: LossConfig) -> TokenLoss:
    """Of the configured loss. Raises OwnCodeFailed for a mistake in a user's."""
    found: Tensor | TokenLoss = LOSSES.call(config.loss, partial(_problem, t), t, config)
    if isinstance(found, TokenLoss):
        return found
    nowhere_E = torch.zeros_like(found, dtype=torch.bool)
    return TokenLoss(found, nowhere_E, nowhere_E, t.advantage_E)


def _problem(t: Terms, found: object) -> str:
    """What is wrong with the result of a user's loss; empty where nothing is."""
    expected = f"expected one value for each entry, a tensor of shape ({len(t.advantage_E)},)"
    columns: list[Any] = list(found) if isinstance(found, TokenLoss) else [found]
    for column in columns:
        if not isinstance(column, Tensor):
            return f"returned a {type(column).__name__}; {expected}"
        if column.shape != t.advantage_E.shape:
            return f"returned a tensor of shape {tuple(column.shape)}; {expected}: the trainer weighs and sums them"
    loss_E = columns[0].detach()
    wrong = torch.nonzero(~torch.isfinite(loss_E))[:, 0]
    if len(wrong):
        e = int(wrong[0])
        of_entry = {n: float(getattr(t, n)[e].detach()) for n in ("new_logprob_E", "old_logprob_E", "advantage_E")}
        seen = ", ".join(f"{name} {value:g}" for name, value in of_entry.items())
        return f"is {float(loss_E[e])} at {len(wrong)} of {len(loss_E)} entries, first at entry {e} ({seen})"
    if t.new_logprob_E.requires_grad and not columns[0].requires_grad:
        return "has no gradient: its result does not depend on new_logprob_E, log_rho_E or log_r_E, or was detached"
    return ""
