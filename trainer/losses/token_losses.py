"""Token-wise policy losses: l_e, and which entries its trust region clipped. Each is evaluated per entry, never per shared token:
clipping a sum of advantages would be another loss.

Symbols as in the package's docstring; A advantage, low and high the clip range, C a cap.
"""

import torch
from torch import Tensor

from trainer.losses.entries import TokenLoss
from trainer.losses.ratios import Terms
from trainer.losses.registry import register_loss
from trainer.settings.loss import LossConfig, LossName


@register_loss(LossName.MINIRL)
def minirl(t: Terms, config: LossConfig) -> TokenLoss:
    """l = −M · sg(min(ρ, C)) · A · ℓ;  M = 0 where (A > 0 and r > high) or (A < 0 and r < low), else 1.

    MiniRL, arXiv 2512.01374, C = importance_weight_cap_ratio. Its clip decision is against the recomputed policy (clip_anchor
    proximal); DPPO, arXiv 2602.04879, advises rollout, the default here, which also saves a forward.
    """
    too_high_E, too_low_E, _ = _beyond(t.r_E.detach(), t)
    mask_E = (~(too_high_E | too_low_E)).to(t.new_logprob_E.dtype)
    weight_E = t.rho_E.detach().clamp(max=config.importance_weight_cap_ratio)
    return TokenLoss(-mask_E * weight_E * t.advantage_E * t.new_logprob_E, too_high_E, too_low_E, t.advantage_E)


@register_loss(LossName.GRPO)
def grpo(t: Terms, config: LossConfig) -> TokenLoss:
    """l = −min(rA, clip(r, low, high)·A); with `dual_clip` c, l = min(l, −cA) where A < 0.

    PPO's surrogate, arXiv 1707.06347, with group-relative advantages, arXiv 2402.03300; dual clip, arXiv 1912.09729. DAPO,
    arXiv 2503.14476: asymmetric range, token-mean. Dr.GRPO, arXiv 2503.20783: seq-mean-token-sum over a constant length_scale.
    Decoupled PPO, AReaL, arXiv 2505.24298: clip_anchor proximal with rollout_is token, so that l = −w·min(rA, clip(r)A).
    """
    return _surrogate(t.r_E, t, config.dual_clip)


def _surrogate(ratio_E: Tensor, t: Terms, dual_clip: float | None) -> TokenLoss:
    clipped_E = torch.minimum(torch.maximum(ratio_E, t.low_E), t.high_E)
    loss_E = -torch.minimum(ratio_E * t.advantage_E, clipped_E * t.advantage_E)
    if dual_clip is not None:
        loss_E = torch.where(t.advantage_E < 0, torch.minimum(loss_E, -dual_clip * t.advantage_E), loss_E)
    return TokenLoss(loss_E, *_beyond(ratio_E.detach(), t))


@register_loss(LossName.CISPO)
def cispo(t: Terms, config: LossConfig) -> TokenLoss:
    """l = −sg(clip(r, low, high)) · A · ℓ. MiniMax-M1, arXiv 2506.13585; epsilon 1 means no lower bound.

    With clip_anchor rollout r is ρ and corrects for staleness and mismatch at once, as ScaleRL does, arXiv 2510.13786.
    """
    ratio_E = t.r_E.detach()
    weight_E = torch.minimum(torch.maximum(ratio_E, t.low_E), t.high_E)
    return TokenLoss(-weight_E * t.advantage_E * t.new_logprob_E, *_beyond(ratio_E, t))


@register_loss(LossName.REINFORCE)
def reinforce(t: Terms, config: LossConfig) -> Tensor:
    """l = −A · ℓ. The correction min(ρ, C) of truncated importance sampling comes from `rollout_is`: l = −sg(min(ρ, C))·A·ℓ.

    Williams 1992; TIS: https://fengyao.notion.site/off-policy-rl. The stop-gradient matters: without it the product's derivative
    adds ℓ·∇ρ.
    """
    return -t.advantage_E * t.new_logprob_E


@register_loss(LossName.DPPO)
def dppo(t: Terms, config: LossConfig) -> TokenLoss:
    """l = −M · min(ρ, C) · A + τ (log ρ)²;  M = 0 where A > 0 and π − μ > epsilon_higher, or A < 0 and π − μ < −epsilon.

    DPPO-TV, arXiv 2602.04879: the trust region is on probabilities, not on their ratio, and anchored on the rollout policy.
    The gradient goes through ρ; at the cap it stays C·A·∇ℓ instead of vanishing. C = importance_weight_cap_ratio, τ =
    log_ratio_penalty. Staleness and strict_in_bound change the region as they do a ratio's.
    """
    change_E = t.new_logprob_E.detach().exp() - t.old_logprob_E.exp()
    too_high_E = (t.advantage_E > 0) & (change_E > t.high_E - 1.0)
    too_low_E = (t.advantage_E < 0) & (change_E < t.low_E - 1.0)
    mask_E = (~(too_high_E | too_low_E)).to(t.new_logprob_E.dtype)
    weight_E = t.rho_E.detach().clamp(max=config.importance_weight_cap_ratio)
    loss_E = -mask_E * weight_E * (t.new_logprob_E - t.new_logprob_E.detach()).exp() * t.advantage_E
    penalty_E = config.log_ratio_penalty * t.log_rho_E.square()
    return TokenLoss(loss_E + penalty_E, too_high_E, too_low_E, t.advantage_E)


@register_loss(LossName.SAPO)
def sapo(t: Terms, config: LossConfig) -> TokenLoss:
    """l = −A · (4/τ) · σ(τ(r − 1)), τ by the sign of A: a gate of weight r·sech²(τ(r − 1)/2), 1 at r = 1 and soft to both sides.

    SAPO, arXiv 2511.20347. The marks say where a clip would have been.
    """
    ratio_E = t.r_E
    gentle_E = torch.full_like(t.advantage_E, config.sapo_temperature_positive)
    tau_E = torch.where(t.advantage_E > 0, gentle_E, config.sapo_temperature_negative)
    loss_E = -t.advantage_E * (4.0 / tau_E) * torch.sigmoid(tau_E * (ratio_E - 1.0))
    return TokenLoss(loss_E, *_beyond(ratio_E.detach(), t))


@register_loss(LossName.ASPO)
def aspo(t: Terms, config: LossConfig) -> TokenLoss:
    """A > 0: l = −A · sg(1/r) · exp(ℓ − sg ℓ) where r ≤ high, without gradient above: unlikely tokens are raised more, not less.
    A ≤ 0: l = −A · max(r, low). With `dual_clip` c (3 in the source): l = −c·A·ℓ where the weight (1/r or r) exceeds c.

    ASPO, arXiv 2510.06062, as in Archer2.0's code, without its clip range by token entropy.
    """
    ratio_E = t.r_E
    fixed_E = ratio_E.detach()
    inverse_E = 1.0 / fixed_E
    raised_E = -t.advantage_E * inverse_E * (t.new_logprob_E - t.new_logprob_E.detach()).exp()
    raised_E = torch.where(fixed_E > t.high_E, raised_E.detach(), raised_E)
    lowered_E = -t.advantage_E * torch.maximum(ratio_E, t.low_E)
    positive_E = t.advantage_E > 0
    loss_E = torch.where(positive_E, raised_E, lowered_E)
    if config.dual_clip is not None:
        weight_E = torch.where(positive_E, inverse_E, fixed_E)
        loss_E = torch.where(weight_E > config.dual_clip, -config.dual_clip * t.advantage_E * t.new_logprob_E, loss_E)
    return TokenLoss(loss_E, *_beyond(fixed_E, t))


@register_loss(LossName.CROSS_ENTROPY)
def cross_entropy(t: Terms, config: LossConfig) -> Tensor:
    """l = −ℓ: maximum likelihood of the trained tokens; advantages are ignored."""
    return -t.new_logprob_E


def _beyond(ratio_E: Tensor, t: Terms) -> tuple[Tensor, Tensor, Tensor]:
    too_high_E, too_low_E = (t.advantage_E > 0) & (ratio_E > t.high_E), (t.advantage_E < 0) & (ratio_E < t.low_E)
    return too_high_E, too_low_E, t.advantage_E
