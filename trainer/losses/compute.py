"""The loss of a batch of entries: L = Σ ω (factor · l + kl_coefficient · KL − entropy_coefficient · H)."""

import torch
from torch import Tensor

from trainer.losses.aggregation import entry_weights
from trainer.losses.corrections import correction
from trainer.losses.entries import Denominators, LossBatch, Outcome
from trainer.losses.kl import kl_terms
from trainer.losses.ratios import Terms, terms
from trainer.losses.registry import token_loss
from trainer.losses.settings import KlSettings, LossConfig


def compute(batch: LossBatch, denominators: Denominators, config: LossConfig) -> tuple[Tensor, Outcome]:
    """The loss of these entries, weighted by ω, 0-dim with gradient: the step's loss is the sum over rows and ranks.

    Raises ValueError when the loss needs whole trajectories and the batch has parts of one.
    """
    t = terms(batch, denominators, config)
    weight_E = entry_weights(t, config)
    corrected = correction(t, config.correction)
    found = token_loss(t, config)
    policy_E = weight_E * corrected.factor_E * found.loss_E
    kl_E, bonus_E = _kl(t, weight_E, config.kl), _entropy_bonus(t, weight_E, config)
    outcome = Outcome(
        policy_E=policy_E.detach(),
        kl_E=kl_E.detach(),
        entropy_bonus_E=bonus_E.detach(),
        too_high_E=found.too_high_E,
        too_low_E=found.too_low_E,
        clip_advantage_E=found.clip_advantage_E.detach(),
        dropped_token_E=corrected.dropped_token_E,
        dropped_sequence_E=corrected.dropped_sequence_E,
        log_mismatch_E=t.log_x_E,
    )
    return (policy_E + kl_E - bonus_E).sum(), outcome


def _kl(t: Terms, weight_E: Tensor, config: KlSettings | None) -> Tensor:
    if config is None:
        return torch.zeros_like(weight_E)
    if t.reference_logprob_E is None:
        raise ValueError("kl_coefficient is not 0, but there are no log-probs of a reference model")
    estimate_E = kl_terms(
        t.new_logprob_E, t.reference_logprob_E, t.log_rho_E, config.kl_estimator, config.kl_off_policy
    )
    return config.kl_coefficient * weight_E * estimate_E


def _entropy_bonus(t: Terms, weight_E: Tensor, config: LossConfig) -> Tensor:
    if config.entropy_coefficient == 0.0:
        return torch.zeros_like(weight_E)
    if t.entropy_E is None:
        raise ValueError("entropy_coefficient is not 0, but the entropies were not computed")
    return config.entropy_coefficient * weight_E * t.entropy_E
