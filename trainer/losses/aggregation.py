"""ω: how much an entry counts. Known before the first backward; masks do not change it."""

import torch
from torch import Tensor

from trainer.losses.ratios import Terms
from trainer.losses.settings import Aggregation, LossConfig


def entry_weights(t: Terms, config: LossConfig) -> Tensor:
    """ω_E, by `config.aggregation`; no gradient."""
    like, denominators = t.new_logprob_E.detach(), t.denominators
    if config.aggregation is Aggregation.TOKEN_SUM:
        return torch.ones_like(like)
    if config.aggregation is Aggregation.TOKEN_MEAN:
        return torch.full_like(like, 1.0 / max(denominators.num_tokens, 1))
    per_sequence = 1.0 / max(denominators.num_trajectories, 1)
    if config.aggregation is Aggregation.SEQUENCE_SUM:
        return torch.full_like(like, per_sequence / config.averaging.length_scale)
    return per_sequence / denominators.tokens_T[t.trajectory_E].to(like.dtype)
