"""Log-probs of truncated distributions: values, gradients, entropy and which tokens lie outside, against plain float64."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from shared.truncation import Truncation
from tests.trainer.builders import LargestTensor, RecordBuilder
from trainer.modeling.logprobs import TokenScores, logits_logprobs, token_logprobs
from trainer.modeling.truncation import thresholds
from trainer.trees.packing import Row, pack
from trainer.trees.tree import merge

N, D, V, E = 9, 6, 23, 40
CASES = {
    "top-p": (0.6, 0, 0.0),
    "top-k": (1.0, 5, 0.0),
    "min-p": (1.0, 0, 0.2),
    "all three": (0.8, 9, 0.05),
    "one token": (1e-6, 0, 0.0),
    "more than there are": (1.0, 1000, 0.0),
    "nothing": (1.0, 0, 0.0),
}


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden_ND = torch.randn(N, D, generator=generator, dtype=torch.float64).requires_grad_()
    weight_VD = torch.randn(V, D, generator=generator, dtype=torch.float64).requires_grad_()
    rows_E = torch.randint(0, N, (E,), generator=generator)
    targets_E = torch.randint(0, V, (E,), generator=generator)
    temperature_E = torch.tensor([1.0, 0.7, 1.5])[torch.randint(0, 3, (E,), generator=generator)]
    return hidden_ND, weight_VD, rows_E, targets_E, temperature_E


def support_by_definition(logits: Tensor, top_p: float, top_k: float, min_p: float) -> set[int]:
    """Token by token, in plain numbers: min-p, of these top-k, of these top-p."""
    probs = logits.softmax(-1).tolist()
    kept = [token for token in range(len(probs)) if probs[token] >= min_p * max(probs)]
    kept.sort(key=lambda token: -probs[token])
    kept = kept[: int(top_k)] if top_k else kept
    whole, mass, result = sum(probs[token] for token in kept), 0.0, []
    for token in kept:
        result.append(token)
        mass += probs[token]
        if top_p < 1 and mass >= top_p * whole:
            break
    return set(result)


def by_definition(logits_EV: Tensor, targets_E: Tensor, truncation_E: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-prob, entropy, outside: autograd differentiates a log-softmax over the kept tokens alone."""
    logprobs, entropies, outside = [], [], []
    for logits, target, truncation in zip(logits_EV, targets_E.tolist(), truncation_E.tolist(), strict=True):
        kept = support_by_definition(logits.detach(), *truncation)
        outside.append(target not in kept)
        index = sorted(kept | {target})
        log_p = logits[index].log_softmax(-1)
        logprobs.append(log_p[index.index(target)])
        entropies.append(-(log_p.exp() * log_p).sum())
    return torch.stack(logprobs), torch.stack(entropies), torch.tensor(outside)


Compute = Callable[..., TokenScores]


def from_hidden(hidden_ND: Tensor, weight_VD: Tensor, *rest: Tensor, truncation_E: Tensor, chunk: int) -> TokenScores:
    return token_logprobs(hidden_ND, weight_VD, *rest, chunk, truncation_E=truncation_E, with_entropy=True)  # type: ignore[arg-type,misc]  # five tensors by position


def from_logits(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    rows_E: Tensor,
    targets_E: Tensor,
    temperature_E: Tensor,
    *,
    truncation_E: Tensor,
    chunk: int,
) -> TokenScores:
    logits_EV = (hidden_ND @ weight_VD.T)[rows_E]
    return logits_logprobs(logits_EV, targets_E, temperature_E, truncation_E=truncation_E, with_entropy=True)


@pytest.mark.parametrize("compute", [from_hidden, from_logits])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize("case", [*CASES, "mixed"])
def test_values_gradients_and_entropy_are_those_of_a_log_softmax_over_the_support(
    case: str, chunk: int, compute: Compute
) -> None:
    hidden_ND, weight_VD, rows_E, targets_E, temperature_E = inputs()
    rows = [*CASES.values()] if case == "mixed" else [CASES[case]]
    truncation_E = torch.tensor(rows)[torch.arange(E) % len(rows)]
    logits_EV = (hidden_ND @ weight_VD.T)[rows_E] / temperature_E.double()[:, None]
    logprob_E, entropy_E, outside_E = by_definition(logits_EV, targets_E, truncation_E)
    found = compute(hidden_ND, weight_VD, rows_E, targets_E, temperature_E, truncation_E=truncation_E, chunk=chunk)
    assert found.entropy_E is not None
    assert found.outside_E is not None
    torch.testing.assert_close(found.logprob_E, logprob_E, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.entropy_E, entropy_E, rtol=1e-12, atol=1e-12)
    assert found.outside_E.tolist() == outside_E.tolist()
    coefficient_E = torch.linspace(-1.0, 2.0, E, dtype=torch.float64)
    for value, expected in (
        (found.logprob_E.exp() * coefficient_E, logprob_E.exp() * coefficient_E),
        (found.entropy_E * coefficient_E + found.logprob_E, entropy_E * coefficient_E + logprob_E),
    ):
        gradients = torch.autograd.grad(value.sum(), (hidden_ND, weight_VD), retain_graph=True)
        expected_gradients = torch.autograd.grad(expected.sum(), (hidden_ND, weight_VD), retain_graph=True)
        for a, b in zip(gradients, expected_gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_the_cases_are_not_idle() -> None:
    """Some tokens are inside, some outside, and truncation changes the log-probs."""
    hidden_ND, weight_VD, *rest = inputs()
    whole = token_logprobs(hidden_ND, weight_VD, *rest)
    truncation_E = torch.tensor([CASES["all three"]]).expand(E, 3)
    found = token_logprobs(hidden_ND, weight_VD, *rest, truncation_E=truncation_E)
    assert found.outside_E is not None
    assert 0 < int(found.outside_E.sum()) < E
    assert ((found.logprob_E - whole.logprob_E) > 1e-3).all()


def test_a_token_outside_has_a_finite_log_prob_and_gradient_in_float32() -> None:
    hidden_ND, weight_VD, *rest = (part.detach().float() if part.is_floating_point() else part for part in inputs())
    hidden_ND.requires_grad_()
    truncation_E = torch.tensor([CASES["one token"]]).expand(E, 3)
    found = token_logprobs(hidden_ND, weight_VD, *rest, truncation_E=truncation_E, with_entropy=True)
    assert found.entropy_E is not None
    (found.logprob_E.sum() + found.entropy_E.sum()).backward()
    assert torch.isfinite(found.logprob_E).all()
    assert hidden_ND.grad is not None
    assert torch.isfinite(hidden_ND.grad).all()


def test_ties_with_the_last_of_the_top_k_are_in_the_support_and_the_threshold_lies_between_tokens() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0, 2.0, 0.0], [3.0, 1.0, 2.0, 0.5, 0.0]])
    threshold_E = thresholds(logits, torch.tensor([[1.0, 2, 0.0], [1.0, 2, 0.0]]))
    assert threshold_E.tolist() == [1.5, 1.5]
    assert (logits >= threshold_E[:, None]).sum(1).tolist() == [3, 2]
    equal = torch.zeros(1, 4)
    assert (equal >= thresholds(equal, torch.tensor([[1.0, 2, 0.0]]))[:, None]).all()


def test_sorting_needs_a_part_of_a_chunk_at_a_time() -> None:
    logits = torch.randn(64, 128)
    with LargestTensor() as largest:
        thresholds(logits, torch.tensor([[0.9, 50, 0.01]]).expand(64, 3))
    assert largest.numel <= 64 * 128 // 8


def rows(*truncations: Truncation) -> list[Row]:
    """One record, a turn for each, whose tokens stand at the same nodes as those of a second record."""
    records = []
    for name in "ab":
        record = RecordBuilder(name)
        after = record.context([1, 2])
        for turn, truncation in enumerate(truncations):
            after = record.reply([5 + turn, 9], after, truncation=truncation if name == "a" else Truncation())
        records.append(record.build())
    return pack([merge(records)], 100)


def test_rows_without_truncation_carry_none_of_it() -> None:
    (row,) = rows(Truncation(), Truncation())
    assert row.truncation_U.shape == (0, 3)
    assert not row.truncated_E.any()
    assert (row.num_entries, len(row.node_U)) == (8, 4)


def test_one_token_has_a_log_prob_for_each_distribution_that_it_was_drawn_from() -> None:
    (row,) = rows(Truncation(), Truncation(top_p=0.5, top_k=7))
    assert (row.num_entries, len(row.node_U)) == (8, 6)
    of_E = row.truncation_U[row.edge_E]
    assert of_E[row.truncated_E].tolist() == [pytest.approx([0.5, 7, 0.0])] * 2
    assert of_E[~row.truncated_E].tolist() == [[1.0, 0.0, 0.0]] * 6
    assert np.bincount(row.trajectory_E[row.truncated_E].numpy()).tolist() == [2]
