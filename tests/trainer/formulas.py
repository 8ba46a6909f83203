"""The losses as their papers write them: one trajectory, one token at a time, in float64. Independent of trainer.losses' code."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tests.trainer.builders import Token
from trainer.losses import LossConfig, LossName


def reference_loss(trajectories: Sequence[Sequence[Token]], staleness: Sequence[float], config: LossConfig) -> Tensor:
    """The loss of a whole step. Trajectories without a token are no sequences."""
    sequences = [(tokens, age) for tokens, age in zip(trajectories, staleness, strict=True) if tokens]
    total_tokens = sum(len(tokens) for tokens, _ in sequences)
    name = config.loss_calculater
    token_mean = name is LossName.CROSS_ENTROPY if config.token_level_loss is None else config.token_level_loss
    skip = config.skip_length_normalization
    token_sum = name is LossName.MINIRL if skip is None else skip
    loss = torch.zeros((), dtype=torch.float64)
    for tokens, age in sequences:
        of_sequence = torch.stack([_token_loss(token, age, config) for token in tokens]).sum()
        if token_mean:
            loss = loss + of_sequence / total_tokens
        elif token_sum:
            loss = loss + of_sequence / config.length_scale / len(sequences)
        else:
            loss = loss + of_sequence / len(tokens) / len(sequences)
    return loss


def _token_loss(token: Token, age: float, config: LossConfig) -> Tensor:
    if config.loss_calculater is LossName.CROSS_ENTROPY:
        return -token.new
    width = math.exp(-config.out_of_date_decay * age) * (
        1.0 if config.strict_in_bound else config.importance_weight_cap_ratio
    )
    low, high = 1.0 - config.epsilon * width, 1.0 + config.epsilon_higher * width
    ratio = torch.exp(token.new - token.old)
    value = ratio.item()
    a = token.advantage
    if config.loss_calculater is LossName.MINIRL:
        if (a > 0 and value > high) or (a < 0 and value < low):
            return 0.0 * token.new
        return -min(value, config.importance_weight_cap_ratio) * a * token.new
    surrogate = ratio * a
    clipped = min(max(value, low), high) * a
    if clipped < value * a:  # the smaller branch is a constant
        surrogate = 0.0 * token.new + clipped
    if config.dual_clip is not None and a < 0 and surrogate.item() < config.dual_clip * a:
        surrogate = 0.0 * token.new + config.dual_clip * a
    return -surrogate
