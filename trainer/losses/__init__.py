"""Losses: pure functions of flat 1-D tensors, one entry per (trajectory, trained token). No padding, no model, no rank.

    compute ▸ ratios ρ r x ▸ weights ω, corrections ▸ l of token_losses, sequence_losses, your own (registry) ▸ kl ▸ sum

Every loss is L = Σ_e ω_e · M_e · l_e, to be minimized. ω_e comes from `Denominators`, which are counted over the
whole optimizer step (all ranks, all rows) before the first backward, so splitting a step into rows changes nothing:
the sums just add up. A mask M_e zeroes a numerator and keeps the denominator. A sequence is a trajectory: all trained
tokens of one record.

    suffix _E  entry (trajectory, trained token)      suffix _T  trajectory
    ℓ   new: the trainer's log-prob, with gradient    μ  old: the sampler's, stored
    ℓp  proximal: the trainer's before the first update of the batch
    ρ = exp(ℓ − μ)      r = exp(ℓ − anchor), anchor = μ or ℓp      x = exp(ℓp − μ), or ρ where ℓp is not used
    sg  stop-gradient

FSDP averages gradients over ranks: who calls backward multiplies the loss by the number of ranks.
"""

from trainer.losses import sequence_losses, token_losses  # noqa: F401  # they register their losses
from trainer.losses.compute import compute
from trainer.losses.entries import Denominators, LossBatch, Outcome, TokenLoss, TrainedTokens
from trainer.losses.ratios import Terms
from trainer.losses.registry import register_loss
from trainer.settings.loss import Aggregation, ClipAnchor, KlEstimator, LossConfig, LossName, RolloutIs

__all__ = [
    "Aggregation",
    "ClipAnchor",
    "Denominators",
    "KlEstimator",
    "LossBatch",
    "LossConfig",
    "LossName",
    "Outcome",
    "RolloutIs",
    "Terms",
    "TokenLoss",
    "TrainedTokens",
    "compute",
    "register_loss",
]
