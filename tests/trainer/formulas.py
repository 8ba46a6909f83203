"""The losses as their papers write them: one trajectory, one token at a time, in float64. Independent of trainer.losses' code."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tests.trainer.builders import Token
from trainer.losses import LossConfig


def reference_loss(trajectories: Sequence[Sequence[Token]], config: LossConfig) -> Tensor:
    """The loss of a whole step. Trajectories without a token are no sequences."""
    sequences = [tokens for tokens in trajectories if tokens]
    total_tokens = sum(len(tokens) for tokens in sequences)
    loss = torch.zeros((), dtype=torch.float64)
    for tokens in sequences:
        losses = policy_losses(tokens, config)
        factors = correction_factors(tokens, config)
        of_sequence = torch.zeros((), dtype=torch.float64)
        for token, token_loss, factor in zip(tokens, losses, factors, strict=True):
            of_sequence = of_sequence + factor * token_loss
            if config.kl:
                of_sequence = of_sequence + config.kl.kl_coefficient * kl(token, config)
            if config.entropy_coefficient:
                assert token.entropy is not None
                of_sequence = of_sequence - config.entropy_coefficient * token.entropy
        loss = loss + of_sequence * weight(len(tokens), len(sequences), total_tokens, config)
    return loss


def weight(length: int, num_sequences: int, total_tokens: int, config: LossConfig) -> float:
    """What one token counts, by the table of aggregations."""
    mode = config.averaging.loss_aggregation
    if mode is None:
        token_mean, token_sum = config.averaging.token_level_loss, config.averaging.skip_length_normalization
        name = str(config.loss)
        if token_mean is None:
            token_mean = name in ("CrossEntropy", "CISPO", "DPPO", "REINFORCE") and token_sum is None
        if token_sum is None:
            token_sum = name == "MINIRL"
        mode = "token-mean" if token_mean else "seq-mean-token-sum" if token_sum else "seq-mean-token-mean"
    return {
        "token-mean": 1.0 / total_tokens,
        "token-sum": 1.0,
        "seq-mean-token-sum": 1.0 / num_sequences / config.averaging.length_scale,
        "seq-mean-token-mean": 1.0 / num_sequences / length,
    }[str(mode)]


def anchor(token: Token, config: LossConfig) -> float:
    """The log-prob that the clipped ratio is against."""
    if config.clip_anchor == "rollout":
        return token.old
    return proximal(token, config)


def proximal(token: Token, config: LossConfig) -> float:
    if config.proximal_logprobs == "loglinear":  # the versions are v, v + staleness and v + staleness + 1
        alpha = ((token.staleness + 1) - 1) / (token.staleness + 1)
        return (1 - alpha) * token.old + alpha * token.new.item()
    return token.new.item() if token.proximal is None else token.proximal


def mismatch(token: Token, config: LossConfig) -> float:
    """log x"""
    if config.clip_anchor == "proximal" and config.loss != "REINFORCE":
        return proximal(token, config) - token.old
    return token.new.item() - token.old


def bounds(token: Token, config: LossConfig) -> tuple[float, float]:
    width = math.exp(-config.out_of_date_decay * token.staleness)
    if not config.strict_in_bound:
        width *= config.importance_weight_cap_ratio
    return 1.0 - config.epsilon * width, 1.0 + config.epsilon_higher * width


def policy_losses(tokens: Sequence[Token], config: LossConfig) -> list[Tensor]:
    """l of each token, before corrections."""
    name = str(config.loss)
    if name in ("GSPO", "GSPO-token"):
        return _gspo(tokens, config)
    return [TOKEN_LOSSES[name](token, config) for token in tokens]


def _ppo(ratio: Tensor, a: float, low: float, high: float, dual_clip: float | None) -> Tensor:
    value = ratio.item()
    clipped = min(max(value, low), high) * a
    surrogate = ratio * a
    if clipped < value * a:  # the smaller branch is a constant
        surrogate = 0.0 * ratio + clipped
    if dual_clip is not None and a < 0 and surrogate.item() < dual_clip * a:
        surrogate = 0.0 * ratio + dual_clip * a
    return -surrogate


def _gspo(tokens: Sequence[Token], config: LossConfig) -> list[Tensor]:
    mean = torch.stack([token.new - anchor(token, config) for token in tokens]).sum() / len(tokens)
    if config.loss == "GSPO":
        advantage = sum(token.advantage for token in tokens) / len(tokens)
        low, high = (sum(bounds(token, config)[side] for token in tokens) / len(tokens) for side in (0, 1))
        return [_ppo(torch.exp(mean), advantage, low, high, config.dual_clip)] * len(tokens)
    sigma = math.exp(mean.item())
    return [
        _ppo(sigma * torch.exp(token.new - token.new.item()), token.advantage, *bounds(token, config), config.dual_clip)
        for token in tokens
    ]


def _minirl(token: Token, config: LossConfig) -> Tensor:
    low, high = bounds(token, config)
    r = math.exp(token.new.item() - anchor(token, config))
    if (token.advantage > 0 and r > high) or (token.advantage < 0 and r < low):
        return 0.0 * token.new
    rho = math.exp(token.new.item() - token.old)
    return -min(rho, config.importance_weight_cap_ratio) * token.advantage * token.new


def _grpo(token: Token, config: LossConfig) -> Tensor:
    ratio = torch.exp(token.new - anchor(token, config))
    return _ppo(ratio, token.advantage, *bounds(token, config), config.dual_clip)


def _cispo(token: Token, config: LossConfig) -> Tensor:
    low, high = bounds(token, config)
    r = math.exp(token.new.item() - anchor(token, config))
    return -min(max(r, low), high) * token.advantage * token.new


def _reinforce(token: Token, config: LossConfig) -> Tensor:
    return -token.advantage * token.new


def _dppo(token: Token, config: LossConfig) -> Tensor:
    low, high = bounds(token, config)
    change = math.exp(token.new.item()) - math.exp(token.old)
    penalty = config.log_ratio_penalty * (token.new - token.old) ** 2
    if (token.advantage > 0 and change > high - 1) or (token.advantage < 0 and change < low - 1):
        return penalty
    rho = torch.exp(token.new - token.old)
    if rho.item() > config.importance_weight_cap_ratio:
        rho = rho * (config.importance_weight_cap_ratio / rho.item())
    return -rho * token.advantage + penalty


def _sapo(token: Token, config: LossConfig) -> Tensor:
    tau = config.sapo_temperature_positive if token.advantage > 0 else config.sapo_temperature_negative
    ratio = torch.exp(token.new - token.old)
    return -token.advantage * (4 / tau) / (1 + torch.exp(-tau * (ratio - 1)))


def _aspo(token: Token, config: LossConfig) -> Tensor:
    low, high = bounds(token, config)
    a, ratio = token.advantage, torch.exp(token.new - anchor(token, config))
    r, c = ratio.item(), math.inf if config.dual_clip is None else config.dual_clip
    if a > 0:
        if 1 / r > c:
            return -c * a * token.new
        if r > high:
            return 0.0 * token.new - a / r
        return -a / r * torch.exp(token.new - token.new.item())
    if r > c:
        return -c * a * token.new
    return -a * ratio if r >= low else 0.0 * token.new - a * low


def _cross_entropy(token: Token, config: LossConfig) -> Tensor:
    return -token.new


TOKEN_LOSSES = {
    "MINIRL": _minirl,
    "GRPO": _grpo,
    "CISPO": _cispo,
    "REINFORCE": _reinforce,
    "DPPO": _dppo,
    "SAPO": _sapo,
    "ASPO": _aspo,
    "CrossEntropy": _cross_entropy,
}


def correction_factors(tokens: Sequence[Token], config: LossConfig) -> list[float]:
    """What the policy term of each token is multiplied by: its weight, or 0 where it is dropped."""
    wanted = config.correction
    logs = [mismatch(token, config) for token in tokens]
    xs = [math.exp(value) for value in logs]
    product, mean = math.exp(sum(logs)), math.exp(sum(logs) / len(logs))
    sequence_kept = (
        _within(product, wanted.sequence_mask_low, wanted.sequence_mask_high)
        and _within(mean, wanted.geometric_mask_low, wanted.geometric_mask_high)
        and _within(sum(x - 1 - math.log(x) for x in xs) / len(xs), None, wanted.k3_mask_high)
        and _within(min(xs), wanted.veto_low, None)
    )
    drift = sum(token.old - token.new.item() for token in tokens) / len(tokens)
    factors = []
    for token, x in zip(tokens, xs, strict=True):
        factor = {
            "none": 1.0,
            "token": min(x, wanted.rollout_is_cap),
            "sequence": min(product, wanted.rollout_is_cap),
        }
        kept = sequence_kept and _within(x, wanted.token_mask_low, wanted.token_mask_high)
        if wanted.opsm_threshold is not None and token.advantage < 0 and drift > wanted.opsm_threshold:
            kept = False
        factors.append(factor[str(wanted.rollout_is)] if kept else 0.0)
    return factors


def _within(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


def kl(token: Token, config: LossConfig) -> Tensor:
    assert token.reference is not None
    d, name = token.new - token.reference, str(config.kl.kl_estimator)
    values = {"k1": d, "k2": d**2 / 2, "k3": torch.exp(-d) + d - 1}
    estimate = values[name.removesuffix("+")]
    if name.endswith("+"):
        estimate = values["k2"] - values["k2"].item() + estimate.item()
    if not config.kl.kl_off_policy:
        return estimate
    ratio = torch.exp(token.new - token.old)
    return (ratio if name in ("k1", "k3") else ratio.item()) * estimate
