"""The KL terms over a whole small vocabulary: expectations are sums, so values and gradients are exact."""

import math

import pytest
import torch
from torch import Tensor

from trainer.losses.kl import kl_terms
from trainer.settings.loss import KlEstimator

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


def slope(estimator: KlEstimator, difference: float, *, off_policy: bool, log_rho: float = 0.0) -> float:
    """The gradient of one token's term by its log-prob, at log π/π_ref = difference."""
    new = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    reference = new.detach() - difference
    rho = new - (new.detach() - log_rho)
    return torch.autograd.grad(kl_terms(new, reference, rho, estimator, off_policy).sum(), new)[0].item()


@pytest.mark.parametrize("difference", [-60.0, -19.0, -4.0, -2.7, -2.6, -0.1, 0.1, 2.0, 4.0, 19.0, 60.0])
@pytest.mark.parametrize("log_rho", [-30.0, 0.0, 1.5, 30.0])
def test_no_limit_turns_a_gradient_around_or_takes_it_away(difference: float, log_rho: float) -> None:
    for estimator in (K.K2, K.K3, K.K1_PLUS, K.K3_PLUS):
        assert slope(estimator, difference, off_policy=False) * difference > 0, estimator
        assert slope(estimator, difference, off_policy=True, log_rho=log_rho) * difference > 0, estimator
    weighted_k1 = slope(K.K1, difference, off_policy=True, log_rho=log_rho)
    assert weighted_k1 * (difference + 1) > 0


@pytest.mark.parametrize("difference", [-19.0, -4.0, -0.3, 0.3, 4.0, 19.0])
def test_weighted_by_the_ratio_the_gradient_of_k3_is_the_difference(difference: float) -> None:
    assert slope(K.K3, difference, off_policy=True) == pytest.approx(difference, rel=1e-12)
    assert slope(K.K3, difference, off_policy=True, log_rho=0.5) == pytest.approx(difference * math.exp(0.5), rel=1e-12)


@pytest.mark.parametrize("estimator", list(K))
def test_descent_on_the_weighted_divergence_alone_ends_at_the_reference(estimator: KlEstimator) -> None:
    """From a policy that thinks the reference's favorite tokens nearly impossible, on samples of another policy."""
    reference = torch.tensor([4.0, 0.0, 0.0, -4.0], dtype=torch.float64).log_softmax(0)
    old = torch.zeros(4, dtype=torch.float64).log_softmax(0)
    logits = torch.tensor([-4.0, 0.0, 0.0, 4.0], dtype=torch.float64, requires_grad=True)
    for _ in range(4000):
        new = logits.log_softmax(0)
        loss = (old.exp() * kl_terms(new, reference, new - old, estimator, True)).sum()
        logits.grad = None
        loss.backward()
        assert logits.grad is not None
        logits.data -= 0.1 * logits.grad
    assert divergence(logits.detach().log_softmax(0), reference).item() < 0.01
