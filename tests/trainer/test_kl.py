"""The KL terms over a whole small vocabulary: expectations are sums, so values and gradients are exact."""

import pytest
import torch
from torch import Tensor

from trainer.losses.kl import kl_terms
from trainer.losses.settings import KlEstimator

V = 6
K = KlEstimator


def policies(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """(logits of the trained policy, log-probs of the sampler's, log-probs of the reference)."""
    generator = torch.Generator().manual_seed(seed)
    logits, old, reference = 0.7 * torch.randn(3, V, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), old.log_softmax(0), reference.log_softmax(0)


def divergence(p: Tensor, q: Tensor) -> Tensor:
    return (p.exp() * (p - q)).sum()


def expected_gradient(estimator: KlEstimator, *, off_policy: bool, sampled_off_policy: bool) -> Tensor:
    """E over sampled tokens of the gradient of the term."""
    logits, old, reference = policies()
    new = logits.log_softmax(0)
    sampler = (old if sampled_off_policy else new.detach()).exp()
    terms = kl_terms(new, reference, new - sampler.log(), estimator, off_policy)
    return torch.autograd.grad((sampler * terms).sum(), logits)[0]


def true_gradients() -> tuple[Tensor, Tensor]:
    """(∇KL(π‖ref), ∇KL(ref‖π))"""
    logits, _, reference = policies()
    new = logits.log_softmax(0)
    forward, backward = divergence(new, reference), divergence(reference, new)
    return torch.autograd.grad(forward, logits, retain_graph=True)[0], torch.autograd.grad(backward, logits)[0]


def same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-12, atol=1e-14)


def test_k1_and_k3_are_the_divergence_on_average() -> None:
    logits, _, reference = policies()
    new = logits.log_softmax(0)
    for estimator in (K.K1, K.K3, K.K1_PLUS, K.K3_PLUS):
        terms = kl_terms(new, reference, torch.zeros(V, dtype=torch.float64), estimator, False)
        assert same((new.exp() * terms).sum(), divergence(new, reference))


@pytest.mark.parametrize("estimator", [K.K2, K.K1_PLUS, K.K3_PLUS])
def test_on_policy_k2_and_its_kin_have_the_gradient_of_the_divergence(estimator: KlEstimator) -> None:
    found = expected_gradient(estimator, off_policy=False, sampled_off_policy=False)
    assert same(found, true_gradients()[0])


def test_on_policy_plain_k1_has_no_gradient_and_plain_k3_that_of_the_other_divergence() -> None:
    assert expected_gradient(K.K1, off_policy=False, sampled_off_policy=False).abs().max() < 1e-15
    k3 = expected_gradient(K.K3, off_policy=False, sampled_off_policy=False)
    assert same(k3, true_gradients()[1])
    assert not same(k3, true_gradients()[0])


@pytest.mark.parametrize("estimator", list(K))
def test_weighted_by_the_ratio_every_estimator_is_right_for_stale_data(estimator: KlEstimator) -> None:
    found = expected_gradient(estimator, off_policy=True, sampled_off_policy=True)
    assert same(found, true_gradients()[0])
    biased = expected_gradient(estimator, off_policy=False, sampled_off_policy=True)
    assert not same(biased, true_gradients()[0])


def test_a_token_that_the_reference_thinks_impossible_does_not_blow_up() -> None:
    new = torch.tensor([-0.1, -90.0], requires_grad=True)
    for estimator in K:
        terms = kl_terms(new, torch.tensor([-90.0, -0.1]), torch.zeros(2), estimator, True)
        assert terms.isfinite().all()
        assert torch.autograd.grad(terms.sum(), new)[0].isfinite().all()
