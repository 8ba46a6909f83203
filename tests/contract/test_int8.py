"""`--quantization int8` of the real vLLM: what it samples by is the published version, rounded, after each kind of update."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from sampler.core.engines.client.engine_client import EngineClient
from sampler.engine.loading.int8 import LARGEST, LARGEST_WITHOUT_VNNI, largest_on, names_of_linears, rounded
from tests.contract.engines import EXACT, MODEL, running

PROMPT, LONG = [5, 6, 7, 8, 9, 10, 11, 12], {"max_new_tokens": 48, "ignore_eos": True, "temperature": 1.0}
pytestmark = [pytest.mark.timeout(360), pytest.mark.slow]


class Rounded(torch.nn.Module):
    """A linear layer in float64 whose weights and activations have 255 values for each row and each token."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        values, scale = rounded(layer.weight.detach(), largest_on("cpu"))
        self.weight, self.bias = values.double() * scale.double(), layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(-1, keepdim=True) / LARGEST
        return torch.nn.functional.linear((x / scale).round() * scale, self.weight, self.bias)


@torch.inference_mode()
def logprobs_of(folder: Path, output: Sequence[int], *, by_rounded: bool) -> list[float]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    if by_rounded:
        for name in names_of_linears(model):
            path = name.removesuffix(".weight")
            layer = model.get_submodule(path)
            assert isinstance(layer, torch.nn.Linear)
            model.set_submodule(path, Rounded(layer))
    ids = torch.tensor([[*PROMPT, *output]])
    logits = model(input_ids=ids).logits[0, len(PROMPT) - 1 : -1]
    found: list[float] = logits.log_softmax(-1).gather(1, torch.tensor(output)[:, None])[:, 0].tolist()
    return found


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running("vllm", MODEL, tmp_path_factory.mktemp("int8") / "engine.log", "--quantization", "int8") as url:
        yield url


@pytest.mark.thorough
async def test_an_engine_with_8_bits_samples_by_the_rounded_weights_of_each_version(
    url: str, client: EngineClient, models: tuple[Path, Path]
) -> None:
    for version in (0, 1, 2):  # the bundled model, random weights, and back
        folder = models[version % 2]
        if version:
            await client.pause(url, "retract")
            await client.update_weights_from_disk(url, str(folder), version)
            await client.resume(url)
        reply = await client.generate(url, PROMPT, LONG, rid=f"int8-{version}")
        exact = logprobs_of(folder, reply.output_ids, by_rounded=False)
        near = logprobs_of(folder, reply.output_ids, by_rounded=True)
        assert max(abs(a - b) for a, b in zip(reply.logprobs, near, strict=True)) < EXACT
        assert max(abs(a - b) for a, b in zip(reply.logprobs, exact, strict=True)) > 10 * EXACT, "8 bits are fewer"
        assert reply.version_runs == [[version, len(reply.output_ids)]]


@pytest.mark.parametrize("largest", [LARGEST, LARGEST_WITHOUT_VNNI])
def test_a_weight_is_rounded_to_the_nearest_value_of_its_row(largest: int) -> None:
    weight = torch.randn(7, 33, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 3, 7)[:, None]
    weight[3] = 0
    values, scale = rounded(weight, largest)
    assert values.dtype == torch.int8
    assert int(values.abs().amax()) == largest
    assert ((values * scale - weight).abs() <= scale / 2 * (1 + 1e-5)).all()
    assert values[3].count_nonzero() == 0


def test_the_linear_layers_of_a_model_are_rounded_and_nothing_else() -> None:
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    names = names_of_linears(model)
    assert {name for name, _ in model.named_parameters() if name not in names and "norm" not in name} == {
        "model.embed_tokens.weight"
    }


def test_a_processor_without_vnni_gets_7_bits(tmp_path: Path) -> None:
    """Its kernels would overflow unnoticed."""
    found = tmp_path / "cpuinfo"
    for flags, largest in (
        ("fpu avx2 avx512f", LARGEST_WITHOUT_VNNI),
        ("avx2 avx512_vnni", LARGEST),
        ("avx_vnni", LARGEST),
    ):
        found.write_text(f"processor : 0\nflags\t\t: {flags}\n")
        assert largest_on("cpu", found) == largest
    assert largest_on("cuda", found) == LARGEST
