"""KL to a frozen reference model, from one sampled token: http://joschu.net/blog/kl-approx.html for the values; for the gradients
of these as loss terms arXiv 2510.01555 and DeepSeek-V3.2, arXiv 2512.02556.

With d = ℓ − ℓref, and tokens sampled from the trained policy π itself:

    k1    d                value KL(π‖ref)     gradient: of mean 0
    k2    d²/2             value near it       gradient of KL(π‖ref)
    k3    exp(−d) + d − 1  value KL(π‖ref)     gradient of KL(ref‖π)
    k1+   value of k1, gradient of k2; k3+ likewise

With `off_policy` each is weighted by ρ, so that expectations over the sampler's policy are those over π. In k1 and k3 the weight
has a gradient too, and with it both have the gradient of KL(π‖ref).
"""

import torch
from torch import Tensor

from trainer.losses.ratios import MAX_LOG_RATIO, exp_ratio
from trainer.losses.settings import KlEstimator

MAX_K3 = 10.0


def kl_terms(new_E: Tensor, reference_E: Tensor, log_rho_E: Tensor, estimator: KlEstimator, off_policy: bool) -> Tensor:
    """The estimate of each entry, with the gradient that belongs to it. d is limited to ±20, k3 to 10."""
    d_E = (new_E - reference_E.to(new_E.dtype)).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    k2_E = d_E.square() / 2.0
    value_E = k2_E
    if estimator in (KlEstimator.K1, KlEstimator.K1_PLUS):
        value_E = d_E
    elif estimator in (KlEstimator.K3, KlEstimator.K3_PLUS):
        value_E = (torch.exp(-d_E) + d_E - 1.0).clamp(max=MAX_K3)
    if estimator in (KlEstimator.K1_PLUS, KlEstimator.K3_PLUS):
        value_E = k2_E + (value_E - k2_E).detach()
    if not off_policy:
        return value_E
    own_gradient = estimator in (KlEstimator.K1, KlEstimator.K3)
    return exp_ratio(log_rho_E if own_gradient else log_rho_E.detach()) * value_E
