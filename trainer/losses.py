"""Losses: pure functions of flat 1-D tensors, one entry per (trajectory, trained token). No padding, no model, no rank.

Every loss is L = Σ_e ω_e · M_e · l_e, to be minimized. ω_e comes from `Denominators`, which are counted over the
whole optimizer step (all ranks, all rows) before the first backward, so splitting a step into rows changes nothing:
the sums just add up. A mask M_e zeroes a numerator and keeps the denominator. A sequence is a trajectory: all trained
tokens of one record.

    suffix _E  entry (trajectory, trained token)      suffix _T  trajectory
    ρ_e = exp(clamp(new − old, ±20))                  new: trainer's log-prob, with gradient; old: the sampler's, stored

FSDP averages gradients over ranks: who calls backward multiplies the loss by the number of ranks.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from trainer.loss_metrics import LossMetrics, measure

MAX_LOG_RATIO = 20.0  # exp(20) ≈ 5e8: large, and still finite in float32


class LossName(StrEnum):
    MINIRL = "MINIRL"  # masked, capped importance-weighted policy gradient: off-policy data, many turns
    GRPO = "GRPO"  # PPO's clipped surrogate with group-relative advantages
    CROSS_ENTROPY = "CrossEntropy"  # supervised: advantages and old log-probs are ignored


class Aggregation(StrEnum):
    TOKEN_MEAN = "token-mean"  # ω = 1 / trained tokens
    SEQUENCE_MEAN = "seq-mean-token-mean"  # ω = 1 / (trajectories · trained tokens of this trajectory)
    SEQUENCE_SUM = "seq-mean-token-sum"  # ω = 1 / (trajectories · length_scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """What a loss needs. Raises ValueError for values that no loss can mean.

    The clip range is [1 − epsilon·w, 1 + epsilon_higher·w] with w = exp(−out_of_date_decay · staleness), times
    `importance_weight_cap_ratio` unless `strict_in_bound`. So by default it is exactly [0.8, 1.27] for fresh and
    stale alike.
    """

    loss_calculater: LossName = LossName.MINIRL
    epsilon: float = 0.2
    epsilon_higher: float = 0.27
    importance_weight_cap_ratio: float = 5.0  # upper limit of the importance weight in MINIRL
    strict_in_bound: bool = True  # False: the clip range is wider by the cap ratio, to be narrowed by age
    out_of_date_decay: float = 0.0  # per step of staleness; 0: the clip range does not depend on age
    token_level_loss: bool | None = None  # None: as in the loss's source (cross entropy: True, otherwise False)
    skip_length_normalization: bool | None = None  # None: as in the loss's source (MINIRL: True, otherwise False)
    length_scale: float = 1.0  # constant divisor of a sequence's token sum when it is not normalized by length
    dual_clip: float | None = None  # GRPO only: the loss of a token with A < 0 is at most −dual_clip·A. None: no limit

    def __post_init__(self) -> None:
        checks = {
            "epsilon must be in (0, 1]": 0.0 < self.epsilon <= 1.0,
            "epsilon_higher must be positive": self.epsilon_higher > 0.0,
            "importance_weight_cap_ratio must be at least 1": self.importance_weight_cap_ratio >= 1.0,
            "out_of_date_decay must not be negative": self.out_of_date_decay >= 0.0,
            "length_scale must be positive": self.length_scale > 0.0,
            "dual_clip must be above 1, or None": self.dual_clip is None or self.dual_clip > 1.0,
        }
        failed = [message for message, ok in checks.items() if not ok]
        if failed:
            raise ValueError(f"loss settings: {'; '.join(failed)}; found {self}")

    @property
    def aggregation(self) -> Aggregation:
        """How tokens are averaged; `token_level_loss` wins over `skip_length_normalization`."""
        token_level = self.token_level_loss
        if token_level is None:
            token_level = self.loss_calculater is LossName.CROSS_ENTROPY
        if token_level:
            return Aggregation.TOKEN_MEAN
        token_sum = self.skip_length_normalization
        if token_sum is None:
            token_sum = self.loss_calculater is LossName.MINIRL
        return Aggregation.SEQUENCE_SUM if token_sum else Aggregation.SEQUENCE_MEAN


@dataclass(frozen=True, slots=True)
class LossBatch:
    """The entries of one row (or of any part of a step); all tensors have the same length."""

    new_logprob_E: Tensor
    old_logprob_E: Tensor
    advantage_E: Tensor
    trajectory_E: Tensor
    turn_E: Tensor
    staleness_E: Tensor
    entropy_E: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Denominators:
    """Counts of one optimizer step. `num_*` are over all ranks; `tokens_T` has the trajectories that this rank holds.

    `tokens_T[t]` is how many trained tokens the trajectory has that the rows number t; it lies on their device. A
    trajectory without a trained token is no sequence and is not counted.
    """

    num_tokens: int
    num_trajectories: int
    tokens_T: Tensor

    @classmethod
    def count(cls, tokens_T: Tensor) -> "Denominators":
        """Of one rank alone; sum `num_tokens` and `num_trajectories` over the ranks before use."""
        return cls(int(tokens_T.sum()), int((tokens_T > 0).sum()), tokens_T)


def compute(batch: LossBatch, denominators: Denominators, config: LossConfig) -> tuple[Tensor, LossMetrics]:
    """The loss of these entries, weighted by ω, 0-dim with gradient: the step's loss is the sum over rows and ranks."""
    weight_E = _weights(batch, denominators, config)
    log_ratio_E = _log_ratio(batch)
    low_E, high_E = _bounds(batch, config)
    if config.loss_calculater is LossName.MINIRL:
        loss_E = minirl(batch, log_ratio_E, low_E, high_E, config.importance_weight_cap_ratio)
    elif config.loss_calculater is LossName.GRPO:
        loss_E = grpo(batch, log_ratio_E, low_E, high_E, config.dual_clip)
    else:
        loss_E = cross_entropy(batch)
    loss = (weight_E * loss_E).sum()
    too_high_E, too_low_E = _out_of_bounds(log_ratio_E.detach().exp(), batch.advantage_E, low_E, high_E)
    metrics = measure(
        loss=loss.detach(),
        log_ratio_E=log_ratio_E.detach(),
        difference_E=batch.new_logprob_E.detach() - batch.old_logprob_E,
        new_logprob_E=batch.new_logprob_E.detach(),
        advantage_E=batch.advantage_E,
        staleness_E=batch.staleness_E,
        turn_E=batch.turn_E,
        entropy_E=batch.entropy_E,
        too_high_E=too_high_E,
        too_low_E=too_low_E,
        cap=config.importance_weight_cap_ratio,
    )
    return loss, metrics


def minirl(batch: LossBatch, log_ratio_E: Tensor, low_E: Tensor, high_E: Tensor, cap: float) -> Tensor:
    """l = −M · sg(min(ρ, cap)) · A · new;  M = 0 where (A > 0 and ρ > high) or (A < 0 and ρ < low), else 1.

    MiniRL, arXiv 2512.01374, with the clip decision anchored on the sampler's policy (as DPPO, arXiv 2602.04879,
    advises) and not on a recomputed one, which also saves a forward.
    """
    ratio_E = log_ratio_E.detach().exp()
    too_high_E, too_low_E = _out_of_bounds(ratio_E, batch.advantage_E, low_E, high_E)
    kept_E = (~(too_high_E | too_low_E)).to(ratio_E.dtype)
    return -kept_E * ratio_E.clamp(max=cap) * batch.advantage_E.to(ratio_E.dtype) * batch.new_logprob_E


def grpo(batch: LossBatch, log_ratio_E: Tensor, low_E: Tensor, high_E: Tensor, dual_clip: float | None) -> Tensor:
    """l = −min(ρA, clip(ρ, low, high)·A); with `dual_clip` c, l = min(l, −cA) where A < 0.

    PPO's surrogate, arXiv 1707.06347, with group-relative advantages, arXiv 2402.03300; dual clip, arXiv 1912.09729.
    Evaluated per entry: clipping a sum of advantages on a shared token would be another loss.
    """
    ratio_E = log_ratio_E.exp()
    advantage_E = batch.advantage_E.to(ratio_E.dtype)
    clipped_E = torch.minimum(torch.maximum(ratio_E, low_E), high_E)
    loss_E = -torch.minimum(ratio_E * advantage_E, clipped_E * advantage_E)
    if dual_clip is None:
        return loss_E
    return torch.where(advantage_E < 0, torch.minimum(loss_E, -dual_clip * advantage_E), loss_E)


def cross_entropy(batch: LossBatch) -> Tensor:
    """l = −new: maximum likelihood of the trained tokens, whatever their advantage."""
    return -batch.new_logprob_E


def _weights(batch: LossBatch, denominators: Denominators, config: LossConfig) -> Tensor:
    like = batch.new_logprob_E
    if config.aggregation is Aggregation.TOKEN_MEAN:
        return torch.full_like(like, 1.0 / max(denominators.num_tokens, 1), requires_grad=False)
    per_sequence = 1.0 / max(denominators.num_trajectories, 1)
    if config.aggregation is Aggregation.SEQUENCE_SUM:
        return torch.full_like(like, per_sequence / config.length_scale, requires_grad=False)
    return per_sequence / denominators.tokens_T[batch.trajectory_E].to(like.dtype)


def _log_ratio(batch: LossBatch) -> Tensor:
    old_E = batch.old_logprob_E.to(batch.new_logprob_E.dtype)
    return (batch.new_logprob_E - old_E).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _bounds(batch: LossBatch, config: LossConfig) -> tuple[Tensor, Tensor]:
    scale = 1.0 if config.strict_in_bound else config.importance_weight_cap_ratio
    width_E = scale * torch.exp(-config.out_of_date_decay * batch.staleness_E.to(batch.new_logprob_E.dtype))
    return 1.0 - config.epsilon * width_E, 1.0 + config.epsilon_higher * width_E


def _out_of_bounds(ratio_E: Tensor, advantage_E: Tensor, low_E: Tensor, high_E: Tensor) -> tuple[Tensor, Tensor]:
    return (advantage_E > 0) & (ratio_E > high_E), (advantage_E < 0) & (ratio_E < low_E)
