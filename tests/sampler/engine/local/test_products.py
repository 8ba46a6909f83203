"""Products by oneDNN are the products, of few shapes, and only where they are faster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from sampler.engine.local import products
from sampler.engine.local.attention import Piece, prefill_plan
from sampler.engine.local.lean import LeanForward
from sampler.engine.local.products import ROWS, Products
from sampler.engine.local.runner import EngineSize, load

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of PyTorch has no oneDNN")

WEIGHT = torch.randn(70, 50, generator=torch.Generator().manual_seed(0))


def of_onednn(*rows: int) -> Products:
    chosen = Products([WEIGHT])
    chosen.by_onednn = frozenset(rows)
    return chosen


def slowly(multiply: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """It computes 30 times."""

    def slow(weight: Tensor, x: Tensor) -> Tensor:
        for _ in range(29):
            multiply(weight, x)
        return multiply(weight, x)

    return slow


def test_products_are_right_for_any_number_of_rows_and_their_shapes_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel stays the real one; its shapes are noted on the way."""
    kernel, shapes = products._by_onednn, set()

    def noted(weight: Tensor, x: Tensor) -> Tensor:
        shapes.add(len(x))
        return kernel(weight, x)

    product = of_onednn(*ROWS)
    monkeypatch.setattr(products, "_by_onednn", noted)
    for count in range(1, 513):
        x = torch.randn(count, 50)
        torch.testing.assert_close(product(WEIGHT, x).t(), x @ WEIGHT.t(), rtol=1e-4, atol=1e-4)
    assert shapes == {*range(1, 9), *range(16, 65, 8), *range(96, 513, 32)}


def test_each_number_of_rows_has_the_library_that_was_measured_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    product = of_onednn(1, 4, 64)
    for name in ("_by_mkl", "_by_onednn"):
        monkeypatch.setattr(products, name, lambda weight, x, name=name: used.append(name) or torch.mm(weight, x.t()))
    for count in (1, 2, 3, 4, 7, 8, 63, 64, 500):
        product(WEIGHT, torch.randn(count, 50))
    assert [name == "_by_onednn" for name in used] == [True, False, False, True, True, False, False, True, True]


def test_it_is_chosen_where_it_is_faster_and_its_results_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    mkl, onednn = products._by_mkl, products._by_onednn
    monkeypatch.setattr(products, "_by_mkl", slowly(mkl))
    assert Products([WEIGHT]).by_onednn == frozenset(ROWS)
    with monkeypatch.context() as wrong:
        wrong.setattr(products, "_by_onednn", lambda weight, x: onednn(weight, x) * 1.01)
        assert not Products([WEIGHT]).by_onednn, "its results are others"
    monkeypatch.setattr(products, "_by_mkl", mkl)
    monkeypatch.setattr(products, "_by_onednn", slowly(onednn))
    assert not Products([WEIGHT]).by_onednn, "it is slower"


def test_the_lean_forward_is_the_same_by_either_library(tmp_path: Path) -> None:
    """`load` compares each with transformers; here both are compared on the same cache."""
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=120, max_position_embeddings=128, **shape)).save_pretrained(tmp_path)
    loaded = load(tmp_path, EngineSize(max_running_requests=2, num_threads=1))
    assert isinstance(loaded.forward, LeanForward)
    tokens = torch.arange(40)
    logits = []
    for rows in ((), ROWS):
        loaded.forward._product.by_onednn = frozenset(rows)
        with torch.inference_mode():
            logits.append(loaded.forward.logits(prefill_plan(loaded.kv, [Piece(0, 40, 0, 0)], tokens, list(range(40)))))
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-5)
