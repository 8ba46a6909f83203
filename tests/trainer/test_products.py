"""Products by oneDNN are the products, and its shapes are few."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scripts.bench.synthetic import VOCABULARY, group, unrelated, write_model
from tests.trainer.conftest import Launch
from trainer.losses import Denominators, LossConfig
from trainer.modeling import products
from trainer.modeling.logprobs import token_logprobs
from trainer.modeling.products import TOKENS, ProductLinear, choose_products, onednn_is_faster, use_onednn, use_products
from trainer.process import private_apis
from trainer.process.parallel import Parallel
from trainer.settings.optimizer import OptimizerConfig
from trainer.step.learner import Learner
from trainer.step.opening import LearnerOptions, open_learner
from trainer.trees.packing import pack
from trainer.trees.tree import Merging, merge

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of PyTorch has no oneDNN")

RECORDS = [unrelated(5, least=90, most=200), group(4, 2, prompt=40, reply=20, observation=10)]


@pytest.fixture(autouse=True)
def _products_of_mkl() -> Iterator[None]:
    yield
    use_onednn(False)


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers wide enough for oneDNN."""
    folder = tmp_path_factory.mktemp("wide")
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
    write_model(folder, hidden_size=128, intermediate_size=192, num_hidden_layers=2, **heads)
    return folder


def gradients_of(layer: nn.Linear, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    output = layer(x)
    coefficients = torch.linspace(-1, 1, output.numel(), dtype=x.dtype).view_as(output)
    (output * coefficients).sum().backward()
    return [output.detach(), x.grad, *(p.grad for p in layer.parameters())]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [64, 77, 200])
def test_a_layer_and_its_gradients_are_those_of_float64(tokens: int, *, bias: bool) -> None:
    torch.manual_seed(0)
    layer, exact = nn.Linear(128, 130, bias=bias), nn.Linear(128, 130, bias=bias).double()
    exact.load_state_dict(layer.state_dict())
    x = torch.randn(1, tokens, 128)
    use_products(layer)
    assert type(layer) is ProductLinear
    use_onednn(True)
    for found, expected in zip(gradients_of(layer, x), gradients_of(exact, x.double()), strict=True):
        assert found.is_contiguous()
        torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=2e-5)


def test_a_frozen_layer_gets_no_gradient() -> None:
    layer = nn.Linear(128, 128).requires_grad_(False)
    use_products(layer)
    use_onednn(True)
    x = torch.randn(80, 128, requires_grad=True)
    layer(x).sum().backward()
    assert layer.weight.grad is None
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(80, 128))


def test_log_probs_and_gradients_are_the_same_with_padded_entries() -> None:
    torch.manual_seed(0)
    count, width = 3 * TOKENS + 5, 128
    hidden, weight = torch.randn(40, width), torch.randn(300, width)
    rows, targets, temperature = (
        torch.randint(0, 40, (count,)),
        torch.randint(0, 300, (count,)),
        torch.rand(count) + 0.5,
    )
    truncation = torch.tensor([[20.0, 0.9, 0.0]]).expand(count, 3)
    results = []
    for onednn in (False, True):
        use_onednn(onednn)
        for truncated in (None, truncation):
            leaves = (hidden.clone().requires_grad_(), weight.clone().requires_grad_())
            scores = token_logprobs(*leaves, rows, targets, temperature, 50, truncation_E=truncated, with_entropy=True)
            assert scores.entropy_E is not None
            assert len(scores.logprob_E) == len(scores.entropy_E) == count
            (scores.logprob_E.sum() + 0.3 * scores.entropy_E.sum()).backward()
            results.append([scores.logprob_E.detach(), *(leaf.grad for leaf in leaves)])
    for mkl, onednn_ in zip(results[:2], results[2:], strict=True):
        for expected, found in zip(mkl, onednn_, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def step_of(learner: Learner) -> dict[str, float]:
    trees = [merge(records, merging=Merging.LINEAR if learner.linear else Merging.TREE) for records in RECORDS]
    rows = pack(trees, 2048, one_sequence_per_row=learner.linear, short_rows=learner.short_rows)
    return learner.step(
        rows, Denominators.count(torch.cat([torch.from_numpy(t.trained_tokens_T) for t in trees]))
    ).metrics


@pytest.mark.parametrize("prefix_trees", [True, False])
def test_a_step_is_that_of_mkl_and_its_shapes_are_multiples(
    wide_model: Path, alone: Parallel, monkeypatch: pytest.MonkeyPatch, *, prefix_trees: bool
) -> None:
    """The kernel stays the real one; its shapes are noted on the way."""
    shapes: list[tuple[int, ...]] = []

    def noted(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        shapes.append((*x.shape, *weight_OI.shape))
        return private_apis.onednn_linear(x, weight_OI, bias_O)

    monkeypatch.setattr(products, "onednn_linear", noted)
    metrics = []
    for onednn in (False, True):
        learner = open_learner(
            wide_model,
            LossConfig(),
            OptimizerConfig(),
            alone,
            LearnerOptions(prefix_trees=prefix_trees, with_entropy=True),
        )
        use_onednn(onednn)
        shapes.clear()
        metrics.append(step_of(learner))
        assert bool(shapes) is onednn
    expected, found = metrics
    for name in ("loss/loss", "loss/logprob_mean_nats", "loss/entropy_nats", "learner/grad_norm"):
        if name in expected:
            assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
    widths = {128, 64, 192, VOCABULARY, 1}
    lengths = {size for shape in shapes for size in shape} - widths
    assert lengths
    assert all(length % TOKENS == 0 for length in lengths), sorted(lengths)


def slowly(kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """It computes 20 times."""

    def slow(*arguments: Any) -> Tensor:
        for _ in range(19):
            kernel(*arguments)
        return kernel(*arguments)

    return slow


def test_what_disagrees_or_is_missing_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "mm", slowly(torch.mm))
    assert onednn_is_faster()
    with monkeypatch.context() as wrong:
        wrong.setattr(products, "onednn_linear", lambda x, w, b: private_apis.onednn_linear(x, w, b) * 1.001)
        assert not onednn_is_faster(), "its results are others"
    with monkeypatch.context() as missing:
        missing.setattr(private_apis, "ONEDNN", "_of_another_version")
        assert not onednn_is_faster(), "PyTorch has no such function"


def test_it_is_not_chosen_where_mkl_is_faster(alone: Parallel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "onednn_linear", slowly(private_apis.onednn_linear))
    use_onednn(True)
    choose_products(alone)
    assert products.padding(65, torch.float32, torch.device("cpu")) == 0


def test_other_types_are_computed_as_before() -> None:
    use_onednn(True)
    assert products.padding(65, torch.float32, torch.device("cpu")) == 31
    for dtype in (torch.float64, torch.bfloat16):
        assert products.padding(65, dtype, torch.device("cpu")) == 0
        x, weight = torch.randn(80, 64).to(dtype), torch.randn(70, 64).to(dtype)
        assert torch.equal(products.product(x, weight.t()), x @ weight.t())


def test_every_rank_computes_as_rank_0_measured(two_processes: Launch) -> None:
    added = [json.loads((two_processes.out / f"rank-{rank}.json").read_text())["padding"] for rank in (0, 1)]
    assert added == [31, 31]
