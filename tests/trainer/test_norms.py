"""The replaced norms are RMSNorms, save less, and replace nothing else."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from tests.trainer.builders import tiny_model
from trainer.modeling.float64_norms import exact_norms
from trainer.modeling.norms import use_norms


def gradients_of(norm: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_(x.is_floating_point())
    y = norm(x)
    y.backward(torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y))
    return [y.detach(), x.grad, norm.weight.grad]


@pytest.mark.parametrize("shape", [(1, 7, 24), (2, 5, 3, 24), (1, 1, 24)])
def test_values_and_gradients_are_those_of_float64(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    norm, exact = Qwen3RMSNorm(24, eps=1e-3), Qwen3RMSNorm(24, eps=1e-3).double()
    nn.init.normal_(norm.weight)
    exact.load_state_dict(norm.state_dict())
    x = torch.randn(shape)
    use_norms(nn.Sequential(norm))
    assert type(norm) is not Qwen3RMSNorm
    with exact_norms(nn.Sequential(exact)):
        for found, expected in zip(gradients_of(norm, x), gradients_of(exact, x.double()), strict=True):
            torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_the_backward_saves_the_input_and_a_number_a_row() -> None:
    norm = LlamaRMSNorm(64)
    use_norms(nn.Sequential(norm))
    saved: dict[int, Tensor] = {}
    x = torch.randn(10, 64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.setdefault(t.data_ptr(), t), lambda t: t):
        norm(x)
    assert sorted(t.numel() for t in saved.values()) == [10, 64, 640]


class ShiftedRMSNorm(LlamaRMSNorm):
    """As of Gemma: it multiplies by 1 + weight."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states) + hidden_states * 0.01


class PlainNorm(LlamaRMSNorm):
    """An RMSNorm of another name."""


@pytest.mark.parametrize("kind", [ShiftedRMSNorm, PlainNorm, nn.LayerNorm])
def test_another_norm_stays(kind: Any) -> None:
    norm = kind(16)
    use_norms(nn.Sequential(norm))
    assert type(norm) is kind


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_computed_by_transformers(dtype: torch.dtype) -> None:
    own, norm = Qwen3RMSNorm(16).to(dtype), Qwen3RMSNorm(16).to(dtype)
    use_norms(nn.Sequential(norm))
    x = torch.randn(5, 16, dtype=dtype)
    for found, expected in zip(gradients_of(norm, x), gradients_of(own, x), strict=True):
        assert torch.equal(found, expected)


def test_every_norm_of_a_model_is_replaced_unless_it_is_compiled() -> None:
    kinds = []
    for compiled in (True, False):
        model = tiny_model()
        use_norms(model, compiled=compiled)
        norms = [m for m in model.modules() if type(m).__name__.endswith("RMSNorm")]
        assert len(norms) > 2
        kinds.append({type(norm).__module__.startswith("transformers") for norm in norms})
    assert kinds == [{True}, {False}]
