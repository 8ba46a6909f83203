"""The loss of a batch of entries: L = Σ ω (factor · l + kl_coefficient · KL − entropy_coefficient · H)."""

from collections.abc import Callable

import torch
from torch import Tensor

from trainer.losses import policy, sequence
from trainer.losses.aggregation import entry_weights
from trainer.losses.corrections import correction
from trainer.losses.kl import kl_terms
from trainer.losses.ratios import Terms, check_whole_trajectories, log_mismatch, terms
from trainer.losses.settings import LossConfig, LossName
from trainer.losses.types import Denominators, LossBatch, Outcome

LOSSES: dict[LossName, Callable[[Terms, LossConfig], policy.TokenLoss]] = {
    LossName.MINIRL: policy.minirl,
    LossName.GRPO: policy.grpo,
    LossName.GSPO: sequence.gspo,
    LossName.GSPO_TOKEN: sequence.gspo_token,
    LossName.CISPO: policy.cispo,
    LossName.REINFORCE: policy.reinforce,
    LossName.DPPO: policy.dppo,
    LossName.SAPO: policy.sapo,
    LossName.ASPO: policy.aspo,
    LossName.CROSS_ENTROPY: policy.cross_entropy,
}


def compute(batch: LossBatch, denominators: Denominators, config: LossConfig) -> tuple[Tensor, Outcome]:
    """The loss of these entries, weighted by ω, 0-dim with gradient: the step's loss is the sum over rows and ranks.

    Raises ValueError when the loss needs whole trajectories and the batch has parts of one.
    """
    if config.needs_whole_trajectories:
        check_whole_trajectories(batch, denominators)
    weight_E = entry_weights(batch, denominators, config)
    t = terms(batch, denominators, config)
    log_x_E = log_mismatch(batch, config)
    corrected = correction(t, log_x_E, config)
    token_loss = LOSSES[config.loss_calculater](t, config)
    policy_E = weight_E * corrected.factor_E * token_loss.loss_E
    kl_E, bonus_E = _kl(batch, t, weight_E, config), _entropy_bonus(batch, weight_E, config)
    outcome = Outcome(
        policy_E=policy_E.detach(),
        kl_E=kl_E.detach(),
        entropy_bonus_E=bonus_E.detach(),
        too_high_E=token_loss.too_high_E,
        too_low_E=token_loss.too_low_E,
        clip_advantage_E=token_loss.clip_advantage_E.detach(),
        dropped_token_E=corrected.dropped_token_E,
        dropped_sequence_E=corrected.dropped_sequence_E,
        log_mismatch_E=log_x_E,
    )
    return (policy_E + kl_E - bonus_E).sum(), outcome


def _kl(batch: LossBatch, t: Terms, weight_E: Tensor, config: LossConfig) -> Tensor:
    if config.kl_coefficient == 0.0:
        return torch.zeros_like(weight_E)
    if batch.reference_logprob_E is None:
        raise ValueError("kl_coefficient is not 0, but there are no log-probs of a reference model")
    estimate_E = kl_terms(t.new_E, batch.reference_logprob_E, t.log_rho_E, config.kl_estimator, config.kl_off_policy)
    return config.kl_coefficient * weight_E * estimate_E


def _entropy_bonus(batch: LossBatch, weight_E: Tensor, config: LossConfig) -> Tensor:
    if config.entropy_coefficient == 0.0:
        return torch.zeros_like(weight_E)
    if batch.entropy_E is None:
        raise ValueError("entropy_coefficient is not 0, but the entropies were not computed")
    return config.entropy_coefficient * weight_E * batch.entropy_E
