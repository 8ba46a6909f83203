"""Corrections for data that another policy sampled: a weight, and masks on tokens and on whole trajectories. No gradients.

    TIS            weight min(x, cap)                          https://fengyao.notion.site/off-policy-rl
    Seq-TIS        weight min(Π x, cap)                        Π over the trained tokens of the trajectory
    MIS, IcePop    drop tokens with x outside [low, high]      arXiv 2510.18855: [0.5, 5]
    Seq-MIS        drop trajectories with Π x outside          rejects long ones: prefer the next two for agents
    geometric      … with (Π x)^(1/T) outside                  [0.99, 1.01]
    K3             … with mean(x − log x − 1) above            0.001 to 0.01
    veto           … with any x below                          1e-4
    OPSM           … with A < 0 and mean(μ − ℓ) above          DeepSeek-V3.2, arXiv 2512.02556: against the policy that sampled

What is dropped keeps its place in the denominators. Dropping takes the policy term only: a KL or entropy term is about the
policy that is trained, wherever the tokens came from.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.losses.ratios import Terms, exp_ratio
from trainer.losses.settings import CorrectionSettings, RolloutIs


@dataclass(frozen=True, slots=True)
class Correction:
    weight_E: Tensor
    dropped_token_E: Tensor
    dropped_sequence_E: Tensor

    @property
    def factor_E(self) -> Tensor:
        """What the policy term is multiplied by."""
        return self.weight_E * (~(self.dropped_token_E | self.dropped_sequence_E)).to(self.weight_E.dtype)


def correction(t: Terms, config: CorrectionSettings) -> Correction:
    """Of every entry; whole trajectories unless only token-wise corrections are on."""
    sum_T = t.trajectory_sum(t.log_x_E)
    return Correction(
        weight_E=_weight(t, sum_T, config),
        dropped_token_E=_outside(t.log_x_E, config.token_mask_low, config.token_mask_high),
        dropped_sequence_E=_dropped_sequences(t, sum_T, config)[t.trajectory_E] | _opsm(t, config),
    )


def _weight(t: Terms, sum_T: Tensor, config: CorrectionSettings) -> Tensor:
    if config.rollout_is is RolloutIs.NONE:
        return torch.ones_like(t.log_x_E)
    log_weight_E = t.log_x_E if config.rollout_is is RolloutIs.TOKEN else sum_T[t.trajectory_E]
    return exp_ratio(log_weight_E).clamp(max=config.rollout_is_cap)


def _dropped_sequences(t: Terms, sum_T: Tensor, config: CorrectionSettings) -> Tensor:
    mean_T = sum_T / t.denominators.whole_T.to(sum_T.dtype).clamp(min=1)
    dropped_T = _outside(sum_T, config.sequence_mask_low, config.sequence_mask_high)
    dropped_T = dropped_T | _outside(mean_T, config.geometric_mask_low, config.geometric_mask_high)
    if config.k3_mask_high is not None:
        k3_T = t.trajectory_mean(exp_ratio(t.log_x_E) - 1.0 - t.log_x_E)
        dropped_T = dropped_T | (k3_T > config.k3_mask_high)
    if config.veto_low is not None:
        vetoes_T = t.trajectory_sum(_outside(t.log_x_E, config.veto_low, None).to(sum_T.dtype))
        dropped_T = dropped_T | (vetoes_T > 0)
    return dropped_T


def _opsm(t: Terms, config: CorrectionSettings) -> Tensor:
    if config.opsm_threshold is None:
        return torch.zeros_like(t.trajectory_E, dtype=torch.bool)
    drift_T = t.trajectory_mean(-t.log_rho_E.detach())
    return (t.advantage_E < 0) & (drift_T[t.trajectory_E] > config.opsm_threshold)


def _outside(log_ratio: Tensor, low: float | None, high: float | None) -> Tensor:
    outside = torch.zeros_like(log_ratio, dtype=torch.bool)
    if low is not None:
        outside = outside | (log_ratio < math.log(low))
    if high is not None:
        outside = outside | (log_ratio > math.log(high))
    return outside
