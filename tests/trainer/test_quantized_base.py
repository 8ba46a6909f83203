"""A base of 4-bit numbers: the bits that engines serve, the gradient of those weights in full, half a byte each."""

import logging
from pathlib import Path
from typing import Any

import bitsandbytes.functional as reference
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from shared.errors import ConfigError
from shared.weights.files import WEIGHTS_FILE
from tests.trainer.builders import relative_difference, tiny_experts_model
from tests.trainer.launched import EXAMPLE, OPTIMIZER, full_parameters, gradients, take_steps
from tests.trainer.layouts import Layout, run
from trainer.checkpoints.checkpoint import Checkpoints
from trainer.checkpoints.folders import latest
from trainer.checkpoints.restore import load, stored_tensors
from trainer.losses import LossConfig, LossName
from trainer.modeling.model import load_model
from trainer.modeling.quantized_base import FourBitLinear
from trainer.modeling.tensor_parallel import cut_layers
from trainer.modeling.trainable import adapters_off, lora_layers
from trainer.process.parallel import Parallel
from trainer.publishing.weights import write_weights
from trainer.quantize import QuantizeConfig, Quantized, quantize
from trainer.settings.trained_parts import Trainable
from trainer.step.learner import Learner
from trainer.step.opening import LearnerOptions, open_learner

LORA = {"lora_rank": 4, "lora_alpha": 8.0}
FOUR_BITS = Trainable.model_validate({**LORA, "base_quantization": "nf4"})
DORA = {**LORA, "use_dora": True}
IDS = torch.tensor([[1, 5, 2, 7, 7, 30]])


def written(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Path, Path, Quantized]:
    """The bundled model in that type, its 4-bit form, and what was said of it."""
    source, target = folder / "source", folder / "quantized"
    model = AutoModelForCausalLM.from_pretrained(EXAMPLE, dtype=dtype)
    model.save_pretrained(source)
    done = quantize(QuantizeConfig(model_name_or_path=source, output_dir=target), Console(quiet=True))
    return source, target, done


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("quantized"))[1]


def learner(directory: Path, parallel: Parallel, trainable: Trainable = FOUR_BITS, dtype: str = "float32") -> Learner:
    loss = LossConfig(loss=LossName.CROSS_ENTROPY)
    return open_learner(directory, loss, OPTIMIZER, parallel, LearnerOptions(trainable=trainable, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_files_hold_the_nearest_numbers_of_bitsandbytes_and_all_else_as_it_was(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    source, target, done = written(tmp_path, dtype)
    before, after = load_file(source / WEIGHTS_FILE), load_file(target / WEIGHTS_FILE)
    assert before.keys() == after.keys()
    assert {name: tensor.dtype for name, tensor in after.items()} == {name: dtype for name in before}
    changed = [name for name, tensor in before.items() if not torch.equal(after[name], tensor)]
    assert changed == [name for name in before if "proj" in name]
    assert done.layers == len(changed)
    assert done.weights == sum(before[name].numel() for name in changed)
    assert 0.05 < done.error < 0.15
    for name in changed:
        codes, state = reference.quantize_4bit(before[name], blocksize=64, quant_type="nf4", compress_statistics=False)
        assert torch.equal(after[name], reference.dequantize_4bit(codes, state))
    assert {path.name for path in target.iterdir()} == {path.name for path in source.iterdir()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_trained_base_has_the_bits_of_the_files(dtype: torch.dtype, tmp_path: Path) -> None:
    """In float32 and in bfloat16, whichever type the files have; so version 0, which is the files, is the policy of step 0."""
    _, target, _ = written(tmp_path, dtype)
    files = load_file(target / WEIGHTS_FILE)
    for computed in ("float32", "bfloat16"):
        if computed == "bfloat16" and dtype is not torch.bfloat16:
            continue
        model = load_model(target, dtype=computed, trainable=FOUR_BITS)
        layers = lora_layers(model)
        assert len(layers) == sum("proj" in name for name in files)
        for name, layer in layers.items():
            assert isinstance(model.get_submodule(f"{name}.base_layer"), FourBitLinear)
            assert torch.equal(layer.weight, files[f"{name}.weight"].to(getattr(torch, computed)))


@pytest.mark.parametrize("adapters", [LORA, DORA], ids=["lora", "dora"])
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-6), ("float64", 1e-12)])
def test_the_gradient_is_that_of_adapters_on_the_same_base_in_full(
    dtype: str, limit: float, adapters: dict[str, Any], quantized: Path, alone: Parallel
) -> None:
    four, full = (
        learner(quantized, alone, Trainable.model_validate({**adapters, "base_quantization": kind}), dtype)
        for kind in ("nf4", "none")
    )
    found, expected = gradients(four), gradients(full)
    assert found.keys() == expected.keys()
    assert max(float(g.abs().max()) for g in found.values()) > 1e-4
    assert relative_difference(found, expected) < limit


@pytest.mark.parametrize("adapters", [LORA, DORA], ids=["lora", "dora"])
def test_after_steps_it_is_published_as_the_whole_base_with_merged_adapters(
    adapters: dict[str, Any], quantized: Path, tmp_path: Path, alone: Parallel
) -> None:
    four, full = (
        learner(quantized, alone, Trainable.model_validate({**adapters, "base_quantization": kind}))
        for kind in ("nf4", "none")
    )
    for one in (four, full):
        take_steps(one, 3, 30, alone)
    found, expected = (
        load_file(write_weights(one.causal_lm, quantized, tmp_path / name, alone).path / WEIGHTS_FILE)
        for one, name in ((four, "four"), (full, "full"))
    )
    assert found.keys() == expected.keys()
    assert relative_difference(found, expected) < 1e-6
    base = load_file(quantized / WEIGHTS_FILE)
    assert relative_difference(found, base) > 1e-4


def test_with_adapters_off_it_answers_as_the_served_model(quantized: Path) -> None:
    served = AutoModelForCausalLM.from_pretrained(quantized, dtype=torch.float32)
    model = load_model(quantized, trainable=FOUR_BITS)
    with torch.no_grad(), adapters_off(model):
        assert torch.equal(model(input_ids=IDS).logits, served(input_ids=IDS).logits)


def test_the_base_takes_half_a_byte_a_weight_and_a_sixteenth_more_for_scales(quantized: Path, alone: Parallel) -> None:
    one = learner(quantized, alone)
    layers = [layer for layer in one.lm.modules() if isinstance(layer, FourBitLinear)]
    weights = sum(layer.in_features * layer.out_features for layer in layers)
    held = sum(buffer.nbytes for layer in layers for buffer in (layer.codes, layer.scales))
    assert held == weights // 2 + 4 * weights // 64
    assert not any(name.endswith("proj.base_layer.weight") for name, _ in one.lm.named_parameters())


def test_a_resume_continues_bit_by_bit_and_the_checkpoint_has_the_adapters_alone(
    quantized: Path, tmp_path: Path, alone: Parallel
) -> None:
    one = learner(quantized, alone)
    take_steps(one, 2, 30, alone)
    Checkpoints(tmp_path, alone, asynchronous=False).save(one, {})
    take_steps(one, 4, 30, alone)
    again, path = learner(quantized, alone), latest(tmp_path)
    assert path
    assert all(".lora_" in name for name in stored_tensors(path))
    load(again, path, alone)
    take_steps(again, 4, 30, alone)
    expected = full_parameters(one)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in full_parameters(again).items())


def test_a_base_of_other_numbers_is_refused_with_the_command_that_makes_one() -> None:
    with pytest.raises(
        ConfigError,
        match=r"layers\.0\..*proj holds, in torch.float32, other numbers than 4 bits do .* `tandem quantize",
    ):
        load_model(EXAMPLE, trainable=FOUR_BITS)


def test_a_single_weight_off_the_nf4_grid_is_refused(quantized: Path) -> None:
    from safetensors.torch import save_file

    folder = quantized.parent / "one-number"
    AutoModelForCausalLM.from_pretrained(quantized, dtype=torch.float32).save_pretrained(folder)
    tensors = load_file(folder / WEIGHTS_FILE)
    name = "model.layers.2.mlp.down_proj.weight"
    tensors[name][3, 5] *= 1.01
    save_file(tensors, folder / WEIGHTS_FILE, {"format": "pt"})
    with pytest.raises(ConfigError, match=r"model\.layers\.2\.mlp\.down_proj holds, in torch.float32, other numbers"):
        load_model(folder, trainable=FOUR_BITS)


def test_a_type_that_cannot_hold_the_files_numbers_is_refused(quantized: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"holds, in torch.bfloat16, other .* a dtype that holds the numbers of its files"
    ):
        load_model(quantized, dtype="bfloat16", trainable=FOUR_BITS)


def test_a_model_in_several_files_keeps_its_files(tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(EXAMPLE, dtype=torch.float32).save_pretrained(
        tmp_path / "many", max_shard_size="1MB"
    )
    (tmp_path / "many" / "pytorch_model.bin").write_bytes(b"older weights")
    target = tmp_path / "quantized"
    quantize(QuantizeConfig(model_name_or_path=tmp_path / "many", output_dir=target), Console(quiet=True))
    names = {path.name for path in (tmp_path / "many").iterdir()} - {"pytorch_model.bin"}
    assert {path.name for path in target.iterdir()} == names
    assert len([name for name in names if name.endswith(".safetensors")]) > 2
    load_model(target, trainable=FOUR_BITS)


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf"), 1e-40, 3e38])
def test_blocks_of_zeros_come_back_and_numbers_that_are_not_finite_are_refused(value: float, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(EXAMPLE, dtype=torch.float32)
    model.model.layers[0].mlp.up_proj.weight.data[0, :64] = value
    model.save_pretrained(tmp_path / "source")
    config = QuantizeConfig(model_name_or_path=tmp_path / "source", output_dir=tmp_path / "out")
    if value in (0.0, 1e-40, 3e38):
        quantize(config, Console(quiet=True))
        load_model(tmp_path / "out", trainable=FOUR_BITS)
    else:
        with pytest.raises(ConfigError, match=r"up_proj\.weight .* not finite"):
            quantize(config, Console(quiet=True))


def test_experts_stay_in_full_and_a_warning_says_their_bytes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny_experts_model().float().save_pretrained(tmp_path / "experts")
    config = QuantizeConfig(model_name_or_path=tmp_path / "experts", output_dir=tmp_path / "quantized")
    quantize(config, Console(quiet=True))
    with caplog.at_level(logging.WARNING):
        model = load_model(tmp_path / "quantized", trainable=FOUR_BITS)
    experts = [parameter for name, parameter in model.named_parameters() if ".experts." in name]
    assert experts
    assert {parameter.dtype for parameter in experts} == {torch.float32}
    size = sum(parameter.nbytes for parameter in experts) / 1e6
    assert f"{len(experts)} tensors of experts are no linear layers and stay in full: {size:.1f} MB" in caplog.text


def test_a_base_of_4_bits_is_not_split_over_processes(quantized: Path) -> None:
    def work(parallel: Parallel) -> None:
        with pytest.raises(
            ConfigError, match="tp_size is 2, and base_quantization is nf4: every process holds all codes"
        ):
            cut_layers(load_model(quantized, trainable=FOUR_BITS), parallel.mesh["tp"], parallel.device)

    run(Layout(1, tp=2), work)


def test_a_written_model_is_never_changed(quantized: Path) -> None:
    with pytest.raises(ConfigError, match="exists; expected a new directory"):
        quantize(QuantizeConfig(model_name_or_path=EXAMPLE, output_dir=quantized), Console(quiet=True))
