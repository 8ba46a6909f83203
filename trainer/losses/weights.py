"""How much an entry counts: ω, and corrections for data that another policy sampled, a weight and masks. No gradients.

ω is known before the first backward; masks do not change it. The corrections:

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
from trainer.settings.loss import Aggregation, CorrectionSettings, LossConfig, RolloutIs


@dataclass(frozen=True, slots=True)
class Weights:
    entry_E: Tensor  # ω
    policy_E: Tensor  # of the policy term: ω, times the correction, 0 where it is dropped
    dropped_token_E: Tensor
    dropped_sequence_E: Tensor


def weights(t: Terms, config: LossConfig) -> Weights:
    """Of every entry; whole trajectories unless only token-wise corrections are on."""
    entry_E, correction = _aggregation(t, config), config.correction
    sum_T = t.trajectory_sum(t.log_x_E)
    dropped_token_E = _outside(t.log_x_E, correction.token_mask_low, correction.token_mask_high)
    dropped_sequence_E = _dropped_sequences(t, sum_T, correction)[t.trajectory_E] | _opsm(t, correction)
    rollout_is_E = _rollout_is(t, sum_T, correction)
    factor_E = rollout_is_E * (~(dropped_token_E | dropped_sequence_E)).to(rollout_is_E.dtype)
    return Weights(entry_E, entry_E * factor_E, dropped_token_E, dropped_sequence_E)


def _aggregation(t: Terms, config: LossConfig) -> Tensor:
    """ω, by `loss_aggregation`."""
    like, denominators = t.new_logprob_E.detach(), t.denominators
    if config.aggregation is Aggregation.TOKEN_SUM:
        return torch.ones_like(like)
    if config.aggregation is Aggregation.TOKEN_MEAN:
        return torch.full_like(like, 1.0 / max(denominators.num_tokens, 1))
    per_sequence = 1.0 / max(denominators.num_trajectories, 1)
    if config.aggregation is Aggregation.SEQUENCE_SUM:
        return torch.full_like(like, per_sequence / config.averaging.length_scale)
    return per_sequence / denominators.tokens_T[t.trajectory_E].to(like.dtype)


def _rollout_is(t: Terms, sum_T: Tensor, config: CorrectionSettings) -> Tensor:
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
