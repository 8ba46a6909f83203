"""Attention by spans is attention under the dense mask, with its gradients, and never makes anything of N × N."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tests.trainer.builders import LargestTensor, random_group, random_tree_record, tiny_model
from trainer.modeling import node_attention
from trainer.modeling.attention import dense_mask
from trainer.modeling.forward import TreeLM, row_logprobs
from trainer.modeling.node_attention import SPAN, NodeSpans, spans_of_row
from trainer.trees.packing import pack
from trainer.trees.tree import merge

HEADS, KEY_HEADS, WIDTH = 4, 2, 8


def random_ends(seed: int) -> Tensor:
    (row,) = pack([merge(random_group(seed)), merge(random_group(seed + 1)), merge(random_group(seed))], 10_000)
    return row.ends_N


def inputs(n: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys and values as a model of transformers lays them out, and the gradient of the output."""
    generator = torch.Generator().manual_seed(n)
    query, key, value = (
        torch.randn(1, n, heads, WIDTH, generator=generator, dtype=torch.float64).to(dtype).transpose(1, 2)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    )
    grad = torch.randn(1, n, HEADS, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    return query.requires_grad_(), key.requires_grad_(), value.requires_grad_(), grad


def by_node(query: Tensor, key: Tensor, value: Tensor, spans: NodeSpans) -> Tensor:
    out, _ = node_attention.attend(torch.nn.Identity(), query, key, value, None, tree_spans=spans)
    return out


def densely(query: Tensor, key: Tensor, value: Tensor, ends_N: Tensor) -> Tensor:
    key, value = (x.repeat_interleave(HEADS // KEY_HEADS, 1) for x in (key, value))
    return scaled_dot_product_attention(query, key, value, attn_mask=dense_mask(ends_N)).transpose(1, 2)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31))
@pytest.mark.parametrize("size", [1, 4, 16, SPAN])
def test_values_and_gradients_are_those_under_the_dense_mask(size: int, seed: int) -> None:
    ends_N = random_ends(seed)
    query, key, value, grad = inputs(len(ends_N))
    spans = NodeSpans(ends_N, tuple(node_attention._spans(ends_N.numpy(), size)))
    found, expected = by_node(query, key, value, spans), densely(query, key, value, ends_N)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    found_grads, expected_grads = (torch.autograd.grad(x, (query, key, value), grad) for x in (found, expected))
    for a, b in zip(found_grads, expected_grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("size", [1, 4, 16, SPAN])
def test_spans_cover_the_row_once_and_see_exactly_their_ancestors(size: int) -> None:
    for seed in range(20):
        ends_N = random_ends(seed)
        mask = dense_mask(ends_N)[0, 0]
        spans = list(node_attention._spans(ends_N.numpy(), size))
        assert [s.start for s in spans] == [0, *(s.stop for s in spans[:-1])]
        assert spans[-1].stop == len(ends_N)
        for span in spans:
            on_path = torch.zeros(span.start, dtype=torch.bool)
            for start, stop in span.path:
                on_path[start:stop] = True
            assert (mask[span.start : span.stop, : span.start] == on_path).all()
            inside = mask[span.start : span.stop, span.start : span.stop]
            assert span.is_chain == torch.equal(inside, torch.ones_like(inside).tril())
            assert span.is_chain or span.stop - span.start <= size


def test_a_sequence_is_one_causal_call() -> None:
    (span,) = spans_of_row(torch.full((5000,), 5000)).spans
    assert (span.start, span.stop, span.path, span.is_chain) == (0, 5000, (), True)


def test_bfloat16_is_as_near_to_float64_as_the_dense_mask_is() -> None:
    (row,) = pack([merge([random_tree_record(np.random.default_rng(1), 600, 40)])], 1000)
    errors = []
    exact = inputs(row.num_tokens)
    low = inputs(row.num_tokens, torch.bfloat16)
    expected = densely(*exact[:3], row.ends_N)
    expected_grads = torch.autograd.grad(expected, exact[:3], exact[3])
    spans = NodeSpans(row.ends_N, tuple(node_attention._spans(row.ends_N.numpy(), 64)))
    for attended in (by_node(*low[:3], spans), densely(*low[:3], row.ends_N)):
        grads = torch.autograd.grad(attended, low[:3], low[3])
        pairs = [(attended, expected), *zip(grads, expected_grads, strict=True)]
        errors.append([float((a.detach().double() - b.detach()).square().mean().sqrt()) for a, b in pairs])
    assert all(0 < ours < 1.5 * theirs for ours, theirs in zip(*errors, strict=True))


def test_no_tensor_grows_with_the_square_of_the_row() -> None:
    largest = []
    for n in (2000, 4000):
        (row,) = pack([merge([random_tree_record(np.random.default_rng(0), n, 60)])], n)
        query, key, value, grad = inputs(n, torch.float32)
        with LargestTensor() as seen:
            torch.autograd.grad(by_node(query, key, value, spans_of_row(row.ends_N)), (query, key, value), grad)
        largest.append(seen.numel)
    assert largest[0] < 2000 * 2000 // 10
    assert largest[1] <= 2 * largest[0]


@pytest.mark.parametrize("size", [1, 4, 16, SPAN])
def test_a_model_has_the_log_probs_of_the_dense_mask(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_attention, "SPAN", size)
    (row,) = pack([merge(random_group(4))], 10_000)
    by_spans, dense = (TreeLM(tiny_model(attention=attention)) for attention in ("by_node", "sdpa"))
    found_E, _ = row_logprobs(by_spans, row, attn=spans_of_row)
    expected_E, _ = row_logprobs(dense, row)
    torch.testing.assert_close(found_E, expected_E, rtol=1e-5, atol=1e-5)  # stock norms compute in float32
    assert not torch.equal(found_E, torch.zeros_like(found_E))


def test_a_model_that_loses_the_spans_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a model that passes keyword arguments on"):
        node_attention.attend(torch.nn.Identity(), *inputs(3)[:3], None)
