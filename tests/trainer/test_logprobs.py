"""Log-probs in chunks are the log-probs, with their gradients, and never need the full logits."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.builders import LargestTensor
from trainer.modeling import logprobs
from trainer.modeling.logprobs import token_logprobs

N, D, V, E = 9, 6, 23, 31


@pytest.fixture(params=[(5, 0), (5, E * V * 8), (logprobs.VOCABULARY_BLOCK, 0)], ids=["blocks", "saved", "one block"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of the vocabulary at a time: 5, of which the last has 3, and all. Logits are computed again, or saved."""
    tokens, saved_bytes = request.param
    monkeypatch.setattr(logprobs, "VOCABULARY_BLOCK", tokens)
    monkeypatch.setattr(logprobs, "SAVED_LOGITS_BYTES", saved_bytes)


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden_ND = torch.randn(N, D, generator=generator, dtype=torch.float64)
    weight_VD = torch.randn(V, D, generator=generator, dtype=torch.float64)
    rows_E = torch.randint(0, N, (E,), generator=generator)
    targets_E = torch.randint(0, V, (E,), generator=generator)
    temperature_E = torch.tensor([1.0, 0.7, 1.5])[torch.randint(0, 3, (E,), generator=generator)]
    return hidden_ND.to(dtype).requires_grad_(), weight_VD.to(dtype).requires_grad_(), rows_E, targets_E, temperature_E


def by_definition(
    hidden_ND: Tensor, weight_VD: Tensor, rows_E: Tensor, targets_E: Tensor, temperature_E: Tensor
) -> Tensor:
    """(E, V) log-probabilities; the caller picks."""
    return torch.log_softmax((hidden_ND @ weight_VD.T)[rows_E] / temperature_E[:, None].to(hidden_ND.dtype), dim=-1)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("chunk", [1, 4, 31, 1000])
def test_values_and_gradients_equal_log_softmax_for_any_chunk(chunk: int) -> None:
    hidden_ND, weight_VD, *rest = inputs()
    coefficient_E = torch.linspace(-1.0, 2.0, E, dtype=torch.float64)
    expected_E = by_definition(hidden_ND, weight_VD, *rest).gather(1, rest[1][:, None]).squeeze(1)
    expected_grads = torch.autograd.grad((coefficient_E * expected_E.exp()).sum(), (hidden_ND, weight_VD))
    found_E, entropy_E, outside_E = token_logprobs(hidden_ND, weight_VD, *rest, chunk)
    found_grads = torch.autograd.grad((coefficient_E * found_E.exp()).sum(), (hidden_ND, weight_VD))
    assert entropy_E is None
    assert outside_E is None
    assert found_E.dtype == torch.float64
    torch.testing.assert_close(found_E, expected_E, rtol=1e-13, atol=1e-13)
    for found, expected in zip(found_grads, expected_grads, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("block")
def test_gradients_agree_with_finite_differences() -> None:
    hidden_ND, weight_VD, *rest = inputs()
    assert torch.autograd.gradcheck(lambda h, w: token_logprobs(h, w, *rest, 7)[0], (hidden_ND, weight_VD))


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("chunk", [4, 1000])
def test_entropy_and_its_gradient_are_those_of_the_sampling_distribution(chunk: int) -> None:
    hidden_ND, weight_VD, *rest = inputs()
    coefficient_E = torch.linspace(-1.0, 2.0, E, dtype=torch.float64)
    logprob_EV = by_definition(hidden_ND, weight_VD, *rest)
    expected_E = -(logprob_EV.exp() * logprob_EV).sum(1)
    logprob_E, entropy_E, _ = token_logprobs(hidden_ND, weight_VD, *rest, chunk, with_entropy=True)
    assert entropy_E is not None
    torch.testing.assert_close(entropy_E, expected_E, rtol=1e-12, atol=1e-12)
    wanted_E = logprob_EV.gather(1, rest[1][:, None]).squeeze(1)
    for found, expected in (
        (coefficient_E * entropy_E, coefficient_E * expected_E),
        (entropy_E.square() * coefficient_E + logprob_E, expected_E.square() * coefficient_E + wanted_E),
    ):
        found_grads = torch.autograd.grad(found.sum(), (hidden_ND, weight_VD), retain_graph=True)
        expected_grads = torch.autograd.grad(expected.sum(), (hidden_ND, weight_VD), retain_graph=True)
        for a, b in zip(found_grads, expected_grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.usefixtures("block")
def test_nothing_to_predict_still_connects_both_inputs_to_the_graph() -> None:
    hidden_ND, weight_VD, rows_E, targets_E, temperature_E = inputs()
    logprob_E, entropy_E, _ = token_logprobs(
        hidden_ND, weight_VD, rows_E[:0], targets_E[:0], temperature_E[:0], 4, with_entropy=True
    )
    assert entropy_E is not None
    assert logprob_E.shape == entropy_E.shape == (0,)
    logprob_E.sum().backward()
    assert hidden_ND.grad is not None
    assert weight_VD.grad is not None
    assert not hidden_ND.grad.any()
    assert not weight_VD.grad.any()


@pytest.mark.usefixtures("block")
def test_bfloat16_inputs_are_multiplied_in_float32_and_get_bfloat16_gradients() -> None:
    hidden_ND, weight_VD, *rest = inputs(torch.bfloat16)
    exact = (hidden_ND.detach().double().requires_grad_(), weight_VD.detach().double().requires_grad_())
    expected_E = by_definition(*exact, *rest).gather(1, rest[1][:, None]).squeeze(1)
    found_E, *_ = token_logprobs(hidden_ND, weight_VD, *rest, 4)
    assert found_E.dtype == torch.float32
    torch.testing.assert_close(found_E.double(), expected_E, rtol=1e-5, atol=1e-5)
    found_E.sum().backward()
    expected_E.sum().backward()
    for found, reference in zip((hidden_ND, weight_VD), exact, strict=True):
        assert found.grad is not None
        assert reference.grad is not None
        assert found.grad.dtype == torch.bfloat16
        assert (found.grad.double() - reference.grad).abs().max() < 0.02 * reference.grad.abs().max()


def test_no_tensor_of_entries_times_vocabulary_is_made_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    entries, vocabulary, chunk = 512, 1024, 16
    monkeypatch.setattr(logprobs, "SAVED_LOGITS_BYTES", 4 * entries * vocabulary - 1)
    hidden_ND, weight_VD = torch.randn(8, 4, requires_grad=True), torch.randn(vocabulary, 4, requires_grad=True)
    index_E = torch.arange(entries)
    with LargestTensor() as largest:
        logprob_E, *_ = token_logprobs(
            hidden_ND, weight_VD, index_E % 8, index_E, torch.ones(entries), chunk, with_entropy=True
        )
        logprob_E.sum().backward()
    assert largest.numel == chunk * vocabulary
    truncation_E = torch.tensor([[0.9, 100, 0.01]]).expand(entries, 3)
    with LargestTensor() as largest:
        logprob_E, *_ = token_logprobs(
            hidden_ND, weight_VD, index_E % 8, index_E, torch.ones(entries), chunk, truncation_E=truncation_E
        )
        logprob_E.sum().backward()
    assert largest.numel == chunk * vocabulary


def test_a_block_whose_logits_are_all_minus_infinity_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of tokens that a model never says."""
    monkeypatch.setattr(logprobs, "VOCABULARY_BLOCK", 4)
    weight_VD = torch.cat([torch.full((4, 1), -torch.inf), torch.randn(6, 1)]).requires_grad_()
    targets_E = torch.tensor([4, 9])
    found_E, *_ = token_logprobs(torch.ones(1, 1), weight_VD, torch.tensor([0, 0]), targets_E, torch.ones(2))
    torch.testing.assert_close(found_E, torch.log_softmax(weight_VD[:, 0], 0)[targets_E])


class Products(TorchDispatchMode):
    """Counts the products of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm_.default)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("saved_bytes", "products_of"), [(0, [4, 3]), (E * V * 8, [3, 2])])
def test_a_head_that_is_not_trained_costs_no_gradient_of_its_own_and_saved_logits_no_product(
    saved_bytes: int, products_of: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "SAVED_LOGITS_BYTES", saved_bytes)
    hidden_ND, weight_VD, *rest = inputs()
    gradients, counts = [], []
    for weight in (weight_VD, weight_VD.detach()):
        with Products() as products:
            token_logprobs(hidden_ND, weight, *rest, E)[0].sum().backward()
        counts.append(products.count)
        gradients.append(hidden_ND.grad)
        hidden_ND.grad = None
    assert torch.equal(*gradients)
    assert counts == products_of


def test_a_chunk_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="chunk is 0"):
        token_logprobs(*inputs(), 0)
