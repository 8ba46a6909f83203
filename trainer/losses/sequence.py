"""Losses on the ratio of a whole trajectory. They need all of its entries in one batch (`check_whole_trajectories`)."""

import dataclasses

from torch import Tensor

from trainer.losses.policy import TokenLoss, grpo
from trainer.losses.ratios import Terms, trajectory_mean
from trainer.losses.settings import LossConfig


def gspo(t: Terms, config: LossConfig) -> TokenLoss:
    """σ = exp(mean over the trajectory of (ℓ − anchor));  l = −min(σA, clip(σ, low, high)·A) with A its mean advantage.

    GSPO, arXiv 2507.18071 (epsilon 3e-4, epsilon_higher 4e-4). Every entry carries its trajectory's l, so that with
    seq-mean-token-mean the step's loss is the mean of l over trajectories. Where advantages differ between the turns of a
    trajectory their mean is used, as AReaL does; GSPO-token keeps them apart. So is that of the bounds, where staleness differs.
    """
    return grpo(dataclasses.replace(t, log_r_E=_log_sigma(t), **_means(t, "advantage_E", "low_E", "high_E")), config)


def _means(t: Terms, *names: str) -> dict[str, Tensor]:
    """Columns with the mean of the trajectory in the place of each entry's value."""
    of_T = {name: trajectory_mean(getattr(t, name), t.trajectory_E, t.entries_T) for name in names}
    return {name: mean_T[t.trajectory_E] for name, mean_T in of_T.items()}


def gspo_token(t: Terms, config: LossConfig) -> TokenLoss:
    """σ_e = sg(σ) · exp(ℓ − sg ℓ);  l = −min(σ_e A, clip(σ_e, low, high)·A) with the entry's own A.

    GSPO-token of the same paper. Equal to GSPO in value and gradient where all advantages of a trajectory are equal.
    """
    log_sigma_E = _log_sigma(t).detach() + (t.new_E - t.new_E.detach())
    return grpo(dataclasses.replace(t, log_r_E=log_sigma_E), config)


def _log_sigma(t: Terms) -> Tensor:
    return trajectory_mean(t.log_r_E, t.trajectory_E, t.entries_T)[t.trajectory_E]
