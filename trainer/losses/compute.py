"""The loss of a batch of entries: L = Σ ω (factor · l + kl_coefficient · KL − entropy_coefficient · H).

A mistake in a user's loss names its line; a wrong shape and values that are not finite are refused.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from trainer.losses.entries import Denominators, LossBatch, Outcome, TokenLoss
from trainer.losses.kl import kl_terms
from trainer.losses.ratios import Terms, terms
from trainer.losses.weights import weights
from trainer.settings.loss import LOSSES, KlSettings, LossConfig


def compute(batch: LossBatch, denominators: Denominators, config: LossConfig) -> tuple[Tensor, Outcome]:
    """The loss of these entries, weighted by ω, 0-dim with gradient: the step's loss is the sum over rows and ranks.

    Raises ValueError when the loss needs whole trajectories and the batch has parts of one.
    """
    t = terms(batch, denominators, config)
    w = weights(t, config)
    loss = _token_loss(t, config)
    policy_E = w.policy_E * loss.loss_E
    kl_E, bonus_E = _kl(t, w.entry_E, config.kl), _entropy_bonus(t, w.entry_E, config)
    outcome = Outcome(
        policy_E=policy_E.detach(),
        kl_E=kl_E.detach(),
        entropy_bonus_E=bonus_E.detach(),
        too_high_E=loss.too_high_E,
        too_low_E=loss.too_low_E,
        clip_advantage_E=loss.clip_advantage_E.detach(),
        dropped_token_E=w.dropped_token_E,
        dropped_sequence_E=w.dropped_sequence_E,
        log_mismatch_E=t.log_x_E,
    )
    return (policy_E + kl_E - bonus_E).sum(), outcome


def _token_loss(t: Terms, config: LossConfig) -> TokenLoss:
    """Of the configured loss. Raises OwnCodeFailed for a mistake in a user's."""
    result: Tensor | TokenLoss = LOSSES.call(config.loss, partial(_problem, t), t, config)
    if isinstance(result, TokenLoss):
        return result
    nowhere_E = torch.zeros_like(result, dtype=torch.bool)
    return TokenLoss(result, nowhere_E, nowhere_E, t.advantage_E)


def _problem(t: Terms, result: object) -> str:
    """What is wrong with the result of a user's loss; empty where nothing is."""
    expected = f"expected one value for each entry, a tensor of shape ({len(t.advantage_E)},)"
    columns: list[Any] = list(result) if isinstance(result, TokenLoss) else [result]
    for column in columns:
        if not isinstance(column, Tensor):
            return f"returned a {type(column).__name__}; {expected}"
        if column.shape != t.advantage_E.shape:
            return f"returned a tensor of shape {tuple(column.shape)}; {expected}: the trainer weighs and sums them"
    loss_E = columns[0].detach()
    wrong = torch.nonzero(~torch.isfinite(loss_E))[:, 0]
    if len(wrong):
        e = int(wrong[0])
        of_entry = {n: float(getattr(t, n)[e].detach()) for n in ("new_logprob_E", "old_logprob_E", "advantage_E")}
        seen = ", ".join(f"{name} {value:g}" for name, value in of_entry.items())
        return f"is {float(loss_E[e])} at {len(wrong)} of {len(loss_E)} entries, first at entry {e} ({seen})"
    if t.new_logprob_E.requires_grad and not columns[0].requires_grad:
        return "has no gradient: its result does not depend on new_logprob_E, log_rho_E or log_r_E, or was detached"
    return ""


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
