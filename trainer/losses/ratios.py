"""The log-ratios of an entry, its clip range, and sums over its trajectory.

Log-ratios are kept as they are and clamped to ±20 only when a ratio is made of them (exp(20) ≈ 5e8: large, and still finite
in float32).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.losses.settings import ClipAnchor, LossConfig, LossName, ProximalLogprobs
from trainer.losses.types import Denominators, LossBatch

MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class Terms:
    """What the policy losses are functions of; everything in the type of the new log-probs."""

    new_E: Tensor
    old_E: Tensor
    advantage_E: Tensor
    log_rho_E: Tensor  # ℓ − μ, with gradient
    log_r_E: Tensor  # ℓ − anchor, with gradient
    low_E: Tensor
    high_E: Tensor
    trajectory_E: Tensor
    entries_T: Tensor


def terms(batch: LossBatch, denominators: Denominators, config: LossConfig) -> Terms:
    """Everything that is a function of single entries."""
    new_E = batch.new_logprob_E
    old_E = batch.old_logprob_E.to(new_E.dtype)
    anchor_E = old_E if config.clip_anchor is ClipAnchor.ROLLOUT else proximal(batch, config)
    low_E, high_E = bounds(batch.staleness_E.to(new_E.dtype), config)
    return Terms(
        new_E=new_E,
        old_E=old_E,
        advantage_E=batch.advantage_E.to(new_E.dtype),
        log_rho_E=new_E - old_E,
        log_r_E=new_E - anchor_E,
        low_E=low_E,
        high_E=high_E,
        trajectory_E=batch.trajectory_E,
        entries_T=denominators.whole_T,
    )


def proximal(batch: LossBatch, config: LossConfig) -> Tensor:
    """ℓp. Recomputed by the trainer, or sg(ℓ) in the first update of a batch, where both are the same number.

    loglinear: ℓp ≈ μ + α (sg(ℓ) − μ), α = s / (s + 1) for a token that was sampled s steps ago: log-probs move evenly from
    version to version, and the new policy is one version after the proximal one. A-3PO, arXiv 2512.06547; AReaL's
    `prox_logp_method=loglinear` (v_θ = v_prox + 1).
    """
    new_E = batch.new_logprob_E.detach()
    if config.proximal_logprobs is ProximalLogprobs.LOGLINEAR:
        old_E, stale_E = batch.old_logprob_E.to(new_E.dtype), batch.staleness_E.to(new_E.dtype)
        return old_E + stale_E / (stale_E + 1.0) * (new_E - old_E)
    return new_E if batch.proximal_logprob_E is None else batch.proximal_logprob_E.to(new_E.dtype)


def log_mismatch(batch: LossBatch, config: LossConfig) -> Tensor:
    """log x without gradient: ℓp − μ where the loss has three policies, else ℓ − μ (clip anchor rollout; plain REINFORCE)."""
    new_E = batch.new_logprob_E.detach()
    two_policies = config.clip_anchor is ClipAnchor.ROLLOUT or config.loss_calculater is LossName.REINFORCE
    return (new_E if two_policies else proximal(batch, config)) - batch.old_logprob_E.to(new_E.dtype)


def bounds(staleness_E: Tensor, config: LossConfig) -> tuple[Tensor, Tensor]:
    """(low_E, high_E) of the ratio; see LossConfig."""
    scale = 1.0 if config.strict_in_bound else config.importance_weight_cap_ratio
    width_E = scale * torch.exp(-config.out_of_date_decay * staleness_E)
    return 1.0 - config.epsilon * width_E, 1.0 + config.epsilon_higher * width_E


def exp_ratio(log_ratio: Tensor) -> Tensor:
    """exp, of at most ±20."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def trajectory_sum(values_E: Tensor, trajectory_E: Tensor, num_trajectories: int) -> Tensor:
    """Sums over the entries of each trajectory, with gradient."""
    return values_E.new_zeros(num_trajectories).index_add(0, trajectory_E, values_E)


def trajectory_mean(values_E: Tensor, trajectory_E: Tensor, entries_T: Tensor) -> Tensor:
    """Means over the entries of each trajectory, with gradient; 0 where there is none.

    `values_E` must hold whole trajectories: the divisor is the trajectory's own count.
    """
    total_T = trajectory_sum(values_E, trajectory_E, len(entries_T))
    return total_T / entries_T.to(values_E.dtype).clamp(min=1)


def check_whole_trajectories(batch: LossBatch, denominators: Denominators) -> None:
    """Raises ValueError where a trajectory is present in part only: its ratio would be another number."""
    whole_T = denominators.whole_T
    found_T = torch.bincount(batch.trajectory_E, minlength=len(whole_T))
    partial = torch.nonzero((found_T > 0) & (found_T != whole_T))[:, 0]
    if len(partial):
        t = int(partial[0])
        raise ValueError(
            f"trajectory {t}: {int(found_T[t])} of its {int(whole_T[t])} trained tokens in this batch; a "
            "sequence-level loss needs all of them together: compute it over the whole step (the two-pass form)"
        )
