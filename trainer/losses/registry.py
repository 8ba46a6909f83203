"""Losses by name: those of this package, and a user's own, which a module of `loss_modules` registers.

    @register_loss("clipped_linear")
    def clipped_linear(t: Terms, config: LossConfig) -> Tensor:
        return -t.advantage_E * t.log_rho_E.clamp(max=config.epsilon_higher)

A loss gives one value per entry, with gradient. `compute` weighs them by ω, corrects, adds KL and entropy, and sums.
"""

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from trainer.losses.entries import TokenLoss
from trainer.losses.ratios import Terms
from trainer.settings.loss import LOSSES, LossConfig

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
