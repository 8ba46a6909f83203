"""The log-ratios of an entry, its clip range, and sums over its trajectory.

Log-ratios are kept as they are and clamped to ±20 only when a ratio is made of them (exp(20) ≈ 5e8: large, and still finite
in float32).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.losses.entries import Denominators, LossBatch
from trainer.settings.loss import ClipAnchor, LossConfig, LossName, ProximalLogprobs

MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms(LossBatch):
    """What a loss is a function of: the entries, all floats in the type of the new log-probs, their ratios and clip range."""

    log_rho_E: Tensor  # ℓ − μ, with gradient
    log_r_E: Tensor  # ℓ − anchor, with gradient
    rho_E: Tensor  # their exponentials, with gradient; `exp_ratio`
    r_E: Tensor
    log_x_E: Tensor  # ℓp − μ or ℓ − μ, without gradient
    low_E: Tensor
    high_E: Tensor
    denominators: Denominators

    def trajectory_sum(self, values_E: Tensor) -> Tensor:
        """Sums over the entries of each trajectory, with gradient."""
        return trajectory_sum(values_E, self.trajectory_E, len(self.denominators.whole_T))

    def trajectory_mean(self, values_E: Tensor) -> Tensor:
        """Means over the entries of each trajectory, with gradient; 0 where there is none.

        `values_E` must hold whole trajectories: the divisor is the trajectory's own count.
        """
        return self.trajectory_sum(values_E) / self.denominators.whole_T.to(values_E.dtype).clamp(min=1)


def terms(batch: LossBatch, denominators: Denominators, config: LossConfig) -> Terms:
    """What single entries say. Raises ValueError where the loss needs more of a trajectory than is here."""
    if config.needs_whole_trajectories:
        _check_whole_trajectories(batch, denominators)
    new_E = batch.new_logprob_E
    columns = batch.columns() | {
        name: getattr(batch, name).to(new_E.dtype) for name in ("old_logprob_E", "advantage_E", "staleness_E")
    }
    old_E, fixed_E = columns["old_logprob_E"], new_E.detach()
    proximal_E = proximal(fixed_E, old_E, columns["staleness_E"], batch.proximal_logprob_E, config)
    on_rollout = config.clip_anchor is ClipAnchor.ROLLOUT
    two_policies = on_rollout or config.loss is LossName.REINFORCE
    low_E, high_E = bounds(columns["staleness_E"], config)
    log_rho_E, log_r_E = new_E - old_E, new_E - (old_E if on_rollout else proximal_E)
    return Terms(
        **columns,
        log_rho_E=log_rho_E,
        log_r_E=log_r_E,
        rho_E=exp_ratio(log_rho_E),
        r_E=exp_ratio(log_r_E),
        log_x_E=(fixed_E if two_policies else proximal_E) - old_E,
        low_E=low_E,
        high_E=high_E,
        denominators=denominators,
    )


def proximal(new_E: Tensor, old_E: Tensor, stale_E: Tensor, recomputed_E: Tensor | None, config: LossConfig) -> Tensor:
    """ℓp. Recomputed by the trainer, or sg(ℓ) in the first update of a batch, where both are the same number.

    loglinear: ℓp ≈ μ + α (sg(ℓ) − μ), α = s / (s + 1) for a token that was sampled s steps ago: log-probs move evenly from
    version to version, and the new policy is one version after the proximal one. A-3PO, arXiv 2512.06547; AReaL's
    `prox_logp_method=loglinear` (v_θ = v_prox + 1).
    """
    if config.proximal_logprobs is ProximalLogprobs.LOGLINEAR:
        return old_E + stale_E / (stale_E + 1.0) * (new_E - old_E)
    return new_E if recomputed_E is None else recomputed_E.to(new_E.dtype)


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


def _check_whole_trajectories(batch: LossBatch, denominators: Denominators) -> None:
    """Raises ValueError where a trajectory is present in part only: its ratio would be another number."""
    whole_T = denominators.whole_T
    present_T = torch.bincount(batch.trajectory_E, minlength=len(whole_T))
    partial = torch.nonzero((present_T > 0) & (present_T != whole_T))[:, 0]
    if len(partial):
        t = int(partial[0])
        raise ValueError(
            f"trajectory {t}: {int(present_T[t])} of its {int(whole_T[t])} trained tokens in this batch; a "
            "sequence-level loss needs all of them together: compute it over the whole step (the two-pass form)"
        )
