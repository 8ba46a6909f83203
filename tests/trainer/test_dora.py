"""DoRA: the gradient is that of its formula, the published weights are PEFT's merge, and nothing else of adapters changes."""

import shutil
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from shared.errors import DataError
from shared.weights.adapters import MAGNITUDE, merge_into
from shared.weights.files import WEIGHTS_FILE
from tests.shared.adapters import read_adapter
from tests.trainer.builders import relative_difference
from tests.trainer.launched import (
    EXAMPLE,
    OPTIMIZER,
    exact_learner,
    full_parameters,
    gradients,
    rows_of_step,
    take_steps,
)
from tests.trainer.layouts import Layout, comparison
from trainer.checkpoints.checkpoint import Checkpoints
from trainer.checkpoints.folders import latest
from trainer.checkpoints.restore import load, stored_tensors
from trainer.export import ExportConfig, export
from trainer.losses import LossConfig
from trainer.modeling.model import load_model
from trainer.modeling.trainable import ADAPTER, adapters_off, lora_layers
from trainer.process.parallel import Parallel, parallel_session
from trainer.publishing.adapter import AdaptedLayers, gather_adapter, write_adapter
from trainer.publishing.weights import write_weights
from trainer.settings.trained_parts import Trainable
from trainer.step.learner import Learner
from trainer.step.opening import LearnerOptions, open_learner

SETTINGS = {"lora_rank": 4, "lora_alpha": 8.0, "use_dora": True}
DORA, LORA = Trainable.model_validate(SETTINGS), Trainable.model_validate(SETTINGS | {"use_dora": False})
SCALE = 2.0
IDS = torch.tensor([[1, 5, 2, 7, 7, 30]])


@pytest.fixture
def adapted(model_directory: Path, alone: Parallel) -> Learner:
    """After two steps, in float64."""
    learner = exact_learner(model_directory, alone, trainable=DORA)
    take_steps(learner, 2, 30, alone)
    return learner


def parts(tensors: dict[str, Tensor], layer: str) -> tuple[Tensor, Tensor, Tensor]:
    """A, B and m of a layer."""
    a, b = (tensors[f"{layer}.lora_{which}.{ADAPTER}.weight"] for which in "AB")
    return a, b, tensors[f"{layer}.{MAGNITUDE}.{ADAPTER}.weight"]


def test_the_gradient_is_that_of_the_merged_formula_with_the_norm_as_a_constant(
    adapted: Learner, model_directory: Path, tmp_path: Path, alone: Parallel
) -> None:
    """G, the gradient of the merged weights, from a model that has them as plain parameters; then the chain rule by hand."""
    trained = full_parameters(adapted)
    merged = write_weights(adapted.causal_lm, model_directory, tmp_path / "merged", alone).path
    found, plain = gradients(adapted), gradients(exact_learner(merged, alone))
    expected: dict[str, Tensor] = {}
    for layer in lora_layers(adapted.causal_lm):
        a, b, m = parts(trained, layer)
        v, g = trained[f"{layer}.base_layer.weight"] + SCALE * b @ a, plain[f"{layer}.weight"]
        norm = v.square().sum(1).sqrt()
        of_v = g * (m / norm)[:, None]
        values = (SCALE * b.T @ of_v, SCALE * of_v @ a.T, (g * v).sum(1) / norm)
        names = [f"lora_A.{ADAPTER}.weight", f"lora_B.{ADAPTER}.weight", f"{MAGNITUDE}.{ADAPTER}.weight"]
        expected |= {f"{layer}.{name}": value for name, value in zip(names, values, strict=True)}
    assert found.keys() == expected.keys()
    assert min(float(gradient.abs().max()) for gradient in found.values()) > 1e-8
    assert relative_difference(found, expected) < 1e-9


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # PEFT asks for it
@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-12), ("float32", 2e-6)])
@pytest.mark.parametrize("rslora", [False, True])
def test_merged_weights_are_those_of_pefts_merge_and_unload(
    dtype: str, limit: float, rslora: bool, model_directory: Path, tmp_path: Path, alone: Parallel
) -> None:
    trainable = Trainable.model_validate(SETTINGS | {"use_rslora": rslora})
    options = LearnerOptions(trainable=trainable, dtype=dtype)
    learner = open_learner(model_directory, LossConfig(), OPTIMIZER, alone, options)
    for step in (0, 1):
        learner.step(*rows_of_step(step, 30, alone))
    published = load_file(
        write_weights(learner.causal_lm, model_directory, tmp_path / "full", alone).path / WEIGHTS_FILE
    )
    assert trainable.lora
    adapter = tmp_path / "adapter"
    targets = AdaptedLayers.of(learner.causal_lm, alone).targets
    write_adapter(adapter, targets, gather_adapter(learner.causal_lm, alone), trainable.lora, model_directory)
    base = AutoModelForCausalLM.from_pretrained(model_directory, dtype=getattr(torch, dtype))
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    theirs = peft.PeftModel.from_pretrained(base, adapter, autocast_adapter_dtype=False).merge_and_unload().state_dict()
    assert relative_difference(published, {name: theirs[name] for name in published}) < limit
    assert relative_difference(published, {name: before[name] for name in published}) > 1e-4
    assert set(read_adapter(adapter).magnitudes) == set(lora_layers(learner.causal_lm))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_it_begins_as_the_base_bit_by_bit(dtype: str) -> None:
    """PEFT's own start in bfloat16 does not: it rounds the magnitudes to the type of the base, and divides by exact norms."""
    with torch.no_grad():
        model, base = load_model(EXAMPLE, dtype=dtype, trainable=DORA), load_model(EXAMPLE, dtype=dtype)
        assert torch.equal(model(input_ids=IDS).logits, base(input_ids=IDS).logits)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {
        torch.float64 if dtype == "float64" else torch.float32
    }


def test_with_adapters_off_trained_magnitudes_do_not_count(adapted: Learner, model_directory: Path) -> None:
    model = load_model(model_directory, dtype="float64", trainable=DORA)
    model.load_state_dict(full_parameters(adapted))
    base = load_model(model_directory, dtype="float64")
    with torch.no_grad():
        expected = model(input_ids=IDS).logits
        with adapters_off(model):
            assert torch.equal(model(input_ids=IDS).logits, base(input_ids=IDS).logits)
        assert torch.equal(model(input_ids=IDS).logits, expected)
        assert float((base(input_ids=IDS).logits - expected).abs().max()) > 1e-3


def test_a_resume_continues_bit_by_bit_and_magnitudes_belong_to_the_checkpoint(
    adapted: Learner, model_directory: Path, tmp_path: Path, alone: Parallel
) -> None:
    Checkpoints(tmp_path, alone).save(adapted, {})
    take_steps(adapted, 4, 30, alone)
    path = latest(tmp_path)
    assert path
    assert sum(MAGNITUDE in name for name in stored_tensors(path)) == len(lora_layers(adapted.causal_lm))
    resumed = exact_learner(model_directory, alone, trainable=DORA)
    load(resumed, path, alone)
    take_steps(resumed, 4, 30, alone)
    expected = full_parameters(adapted)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in full_parameters(resumed).items())
    with pytest.raises(
        DataError, match=r"such as .*lora_magnitude_vector.*expected the same model, lora_rank, use_dora"
    ):
        load(exact_learner(model_directory, alone, trainable=LORA), path, alone)


def test_an_exported_checkpoint_is_what_was_published_and_its_adapter_merges_to_the_same_bits(
    model_directory: Path, tmp_path: Path
) -> None:
    accounting = {"model_name_or_path": str(model_directory), "trainable": DORA.model_dump()}
    with parallel_session("cpu", num_threads=1) as alone:
        learner = exact_learner(model_directory, alone, trainable=DORA)
        take_steps(learner, 2, 30, alone)
        Checkpoints(tmp_path / "checkpoints", alone).save(learner, accounting)
        published = write_weights(learner.causal_lm, model_directory, tmp_path / "published", alone).path
    checkpoint = f"--checkpoint={latest(tmp_path / 'checkpoints')}"
    exported = export(ExportConfig.load([checkpoint, f"--output_dir={tmp_path / 'exported'}"])).path
    assert (exported / WEIGHTS_FILE).read_bytes() == (published / WEIGHTS_FILE).read_bytes()
    apart = export(ExportConfig.load([checkpoint, f"--output_dir={tmp_path / 'adapter'}", "--adapter=true"])).path
    merge_into(model := Path(shutil.copytree(model_directory, tmp_path / "model")), read_adapter(apart))
    whole = load_file(published / WEIGHTS_FILE)
    assert all(torch.equal(tensor, whole[name]) for name, tensor in load_file(model / WEIGHTS_FILE).items())


@pytest.mark.thorough
def test_two_processes_train_the_parameters_of_one_and_continue_its_checkpoint() -> None:
    one, two = Layout(1), Layout(2)
    with comparison(DORA) as compared:
        expected = compared.trained(one)
        assert relative_difference(compared.trained(two), expected) < 1e-9
        assert relative_difference(compared.continued(one, two), expected) < 1e-9
