"""Losses on the ratio of a whole trajectory. They need all of its entries in one batch (`whole_trajectories`)."""

import dataclasses

from torch import Tensor

from trainer.losses.entries import TokenLoss
from trainer.losses.ratios import Terms, exp_ratio
from trainer.losses.registry import register_loss
from trainer.losses.token_losses import grpo
from trainer.settings.loss import LossConfig, LossName


@register_loss(LossName.GSPO, whole_trajectories=True)
def gspo(t: Terms, config: LossConfig) -> TokenLoss:
    """σ = exp(mean over the trajectory of (ℓ − anchor));  l = −min(σA, clip(σ, low, high)·A) with A its mean advantage.

    GSPO, arXiv 2507.18071 (epsilon 3e-4, epsilon_higher 4e-4). Every entry carries its trajectory's l, so that with
    seq-mean-token-mean the step's loss is the mean of l over trajectories. Where advantages differ between the turns of a
    trajectory their mean is used, as AReaL does; GSPO-token keeps them apart. So is that of the bounds, where staleness differs.
    """
    means_E = {name: _mean_of_trajectory(t, getattr(t, name)) for name in ("advantage_E", "low_E", "high_E")}
    sigma_E = exp_ratio(_mean_of_trajectory(t, t.log_r_E))
    return grpo(dataclasses.replace(t, r_E=sigma_E, **means_E), config)  # type: ignore[arg-type]  # tensors, all of them


@register_loss(LossName.GSPO_TOKEN, whole_trajectories=True)
def gspo_token(t: Terms, config: LossConfig) -> TokenLoss:
    """σ_e = sg(σ) · exp(ℓ − sg ℓ);  l = −min(σ_e A, clip(σ_e, low, high)·A) with the entry's own A.

    GSPO-token of the same paper. Equal to GSPO in value and gradient where all advantages of a trajectory are equal.
    """
    log_sigma_E = _mean_of_trajectory(t, t.log_r_E).detach() + (t.new_logprob_E - t.new_logprob_E.detach())
    return grpo(dataclasses.replace(t, r_E=exp_ratio(log_sigma_E)), config)


def _mean_of_trajectory(t: Terms, values_E: Tensor) -> Tensor:
    """In the place of each entry's value."""
    return t.trajectory_mean(values_E)[t.trajectory_E]
