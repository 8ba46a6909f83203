"""KL to a frozen reference model, from one sampled token: http://joschu.net/blog/kl-approx.html for the values; for the gradients
of these as loss terms arXiv 2510.01555 and DeepSeek-V3.2, arXiv 2512.02556.

With d = ℓ − ℓref, and tokens sampled from the trained policy π itself:

          value                             slope ∂/∂ℓ     expected gradient
    k1    d              KL(π‖ref)          1              0
    k2    d²/2           near it            d              that of KL(π‖ref)
    k3    exp(−d) + d − 1  KL(π‖ref)        1 − exp(−d)    that of KL(ref‖π)
    k1+   value of k1, slope of k2; k3+ likewise

With `off_policy` each is weighted by ρ = π/μ, so that expectations over the sampler's policy μ are those over π. In k1 and k3 the
weight has a gradient too, ρ, and the products have the slopes ρ (d + 1) and ρ d: both have the gradient of KL(π‖ref).

Limits: the value of k3 is at most 10, and a slope, before ρ, is within ±20. Values and slopes are limited apart, so that a limit
makes a gradient smaller, but never 0 and never of the other sign: the product of ρ and a k3 that is held at 10 would push a token
further away from the reference.
"""

import torch
from torch import Tensor

from trainer.losses.ratios import MAX_LOG_RATIO, exp_ratio
from trainer.settings.loss import KlEstimator

MAX_K3 = 10.0
MAX_SLOPE = 20.0


def kl_terms(new_E: Tensor, reference_E: Tensor, log_rho_E: Tensor, estimator: KlEstimator, off_policy: bool) -> Tensor:
    """The estimate of each entry, with the gradient that belongs to it. d is limited to ±20 in values."""
    fixed_E = new_E.detach()
    d_E = fixed_E - reference_E.to(new_E.dtype)
    value_E, slope_E = _value(d_E.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO), estimator), _slope(d_E, estimator, off_policy)
    term_E = value_E + slope_E.clamp(-MAX_SLOPE, MAX_SLOPE) * (new_E - fixed_E)
    return exp_ratio(log_rho_E.detach()) * term_E if off_policy else term_E


def _value(d_E: Tensor, estimator: KlEstimator) -> Tensor:
    match estimator:
        case KlEstimator.K1 | KlEstimator.K1_PLUS:
            return d_E
        case KlEstimator.K2:
            return d_E.square() / 2.0
        case KlEstimator.K3 | KlEstimator.K3_PLUS:
            return (torch.exp(-d_E) + d_E - 1.0).clamp(max=MAX_K3)


def _slope(d_E: Tensor, estimator: KlEstimator, off_policy: bool) -> Tensor:
    """∂/∂ℓ of the estimate, or of its product with ρ divided by ρ."""
    match estimator:
        case KlEstimator.K1:
            return d_E + 1.0 if off_policy else torch.ones_like(d_E)
        case KlEstimator.K3 if not off_policy:
            return 1.0 - torch.exp(-d_E)
    return d_E
