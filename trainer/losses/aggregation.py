"""ω: how much an entry counts. Known before the first backward; masks do not change it."""

import torch
from torch import Tensor

from trainer.losses.settings import Aggregation, LossConfig
from trainer.losses.types import Denominators, LossBatch


def entry_weights(batch: LossBatch, denominators: Denominators, config: LossConfig) -> Tensor:
    """ω_E, by `config.aggregation`; no gradient."""
    like = batch.new_logprob_E.detach()
    if config.aggregation is Aggregation.TOKEN_SUM:
        return torch.ones_like(like)
    if config.aggregation is Aggregation.TOKEN_MEAN:
        return torch.full_like(like, 1.0 / max(denominators.num_tokens, 1))
    per_sequence = 1.0 / max(denominators.num_trajectories, 1)
    if config.aggregation is Aggregation.SEQUENCE_SUM:
        return torch.full_like(like, per_sequence / config.length_scale)
    return per_sequence / denominators.tokens_T[batch.trajectory_E].to(like.dtype)
