"""What is frozen does not move, what is published is what was trained; processes and restarts change nothing with adapters."""

import logging
import shutil
from contextlib import nullcontext
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from shared.errors import ConfigError, DataError
from shared.weights.adapters import merge_into
from tests.shared.adapters import read_adapter
from tests.trainer.builders import relative_difference, tiny_model
from tests.trainer.launched import OPTIMIZER, exact_learner, full_parameters, rows_of_step, take_steps
from tests.trainer.layouts import Layout, comparison, run
from trainer.checkpoints.checkpoint import Checkpoints
from trainer.checkpoints.folders import latest
from trainer.checkpoints.restore import load, stored_tensors
from trainer.export import ExportConfig, export
from trainer.losses import LossConfig
from trainer.modeling.float64_norms import exact_norms
from trainer.modeling.model import load_model
from trainer.modeling.tensor_parallel import cut_layers
from trainer.modeling.trainable import ADAPTER, LoraLayer, adapters_off, lora_layers
from trainer.process.parallel import Parallel, parallel_session
from trainer.publishing.adapter import AdaptedLayers, gather_adapter, write_adapter
from trainer.publishing.weights import write_weights
from trainer.settings.trained_parts import EVERYTHING, Trainable
from trainer.step.learner import Learner
from trainer.step.opening import LearnerOptions, open_learner

LORA = Trainable(lora_rank=4, lora_alpha=8.0)
FREEZE = Trainable(freeze=["model.embed_tokens.*", "model.layers.0.*"])
IDS = torch.tensor([[1, 5, 2, 7, 7, 30]])


def logits(model: torch.nn.Module) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=IDS).logits
    return found


def whole(learner: Learner, directory: Path) -> PreTrainedModel:
    """Its model on one process, not sharded."""
    model = load_model(directory, dtype="float64", trainable=LORA)
    model.load_state_dict(full_parameters(learner))
    return model


def lora_tensors(state: dict[str, Tensor]) -> set[str]:
    return {name for name in state if ".lora_" in name}


@pytest.fixture
def adapted(model_directory: Path, alone: Parallel) -> Learner:
    """Adapters after two steps, in float64."""
    learner = exact_learner(model_directory, alone, trainable=LORA)
    take_steps(learner, 2, 30, alone)
    return learner


def test_the_published_model_answers_as_the_model_with_adapters(
    adapted: Learner, model_directory: Path, tmp_path: Path, alone: Parallel
) -> None:
    written = write_weights(adapted.causal_lm, model_directory, tmp_path / "merged", alone)
    published = AutoModelForCausalLM.from_pretrained(written.path, dtype="auto")
    expected, base = logits(whole(adapted, model_directory)), logits(load_model(model_directory, dtype="float64"))
    assert float((logits(published) - expected).abs().max()) < 1e-9
    assert float((base - expected).abs().max()) > 1e-3
    assert published.state_dict().keys() == tiny_model().state_dict().keys()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_merged_matrix_is_the_exact_sum_rounded_once(
    dtype: str, model_directory: Path, tmp_path: Path, alone: Parallel
) -> None:
    """The ranks are added one after the other; PEFT's merge, which adds them in its processor's order, is as good as equal."""
    learner = open_learner(model_directory, LossConfig(), OPTIMIZER, alone, LearnerOptions(trainable=LORA, dtype=dtype))
    learner.step(*rows_of_step(0, 30, alone))
    trained = full_parameters(learner)
    assert {trained[name].dtype for name in lora_tensors(trained)} == {torch.float32}
    written = load_file(
        write_weights(learner.causal_lm, model_directory, tmp_path / "out", alone).path / "model.safetensors"
    )
    name = "model.layers.1.mlp.down_proj"
    base = trained[f"{name}.base_layer.weight"]
    a, b = (trained[f"{name}.lora_{which}.{ADAPTER}.weight"] for which in "AB")
    assert bool(b.any())
    assert written[f"{name}.weight"].dtype == base.dtype == getattr(torch, dtype)
    total = b[:, :1] * a[:1]
    for k in range(1, 4):
        total = total + b[:, k : k + 1] * a[k : k + 1]
    assert torch.equal(written[f"{name}.weight"], (base.float() + total * 2.0).to(base.dtype))
    if dtype == "float32":
        alike = load_model(model_directory, trainable=LORA)
        alike.load_state_dict(trained)
        layer = alike.get_submodule(name)
        layer.merge()
        torch.testing.assert_close(written[f"{name}.weight"], layer.base_layer.weight.data, rtol=1e-6, atol=1e-8)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT reads it
def test_rslora_is_published_and_exported_as_peft_scales_it(
    model_directory: Path, tmp_path: Path, alone: Parallel
) -> None:
    trainable = Trainable.model_validate({"lora_rank": 4, "lora_alpha": 8.0, "use_rslora": True})
    learner = exact_learner(model_directory, alone, trainable=trainable)
    take_steps(learner, 2, 30, alone)
    published = load_file(
        write_weights(learner.causal_lm, model_directory, tmp_path / "full", alone).path / "model.safetensors"
    )
    assert trainable.lora
    adapter = tmp_path / "adapter"
    targets = AdaptedLayers.of(learner.causal_lm, alone).targets
    write_adapter(adapter, targets, gather_adapter(learner.causal_lm, alone), trainable.lora, model_directory)
    base = AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.float64)
    theirs = peft.PeftModel.from_pretrained(base, adapter, autocast_adapter_dtype=False).merge_and_unload().state_dict()
    assert relative_difference(published, {name: theirs[name] for name in published}) < 1e-9
    assert read_adapter(adapter).scale == 8.0 / 4**0.5


@pytest.mark.parametrize("trainable", [LORA, FREEZE], ids=["lora", "freeze"])
def test_what_is_frozen_keeps_every_bit_and_the_rest_moves(
    trainable: Trainable, model_directory: Path, alone: Parallel
) -> None:
    learner = exact_learner(model_directory, alone, trainable=trainable)
    frozen = {name for name, parameter in learner.causal_lm.named_parameters() if not parameter.requires_grad}
    before = full_parameters(learner)
    take_steps(learner, 2, 30, alone)
    moved = {name for name, tensor in full_parameters(learner).items() if not torch.equal(tensor, before[name])}
    trained = {name for name, parameter in learner.causal_lm.named_parameters() if parameter.requires_grad}
    assert moved - {"lm_head.weight"} == trained
    if trainable is LORA:
        assert trained == lora_tensors(before)
    else:
        assert frozen == {n for n in before if n.startswith(("model.embed_tokens.", "model.layers.0."))}
        assert "lm_head.weight" not in moved  # tied


@pytest.mark.parametrize("trainable", [LORA, FREEZE], ids=["lora", "freeze"])
@pytest.mark.thorough
def test_two_processes_train_the_parameters_of_one_and_continue_its_checkpoint(trainable: Trainable) -> None:
    one, two = Layout(1), Layout(2)
    with comparison(trainable) as compared:
        expected = compared.trained(one)
        assert relative_difference(compared.trained(two), expected) < 1e-9
        assert relative_difference(compared.continued(one, two), expected) < 1e-9
        assert relative_difference(compared.continued(two, one), expected) < 1e-9


@pytest.mark.parametrize(
    "trainable", [pytest.param(LORA, id="lora"), pytest.param(FREEZE, id="freeze", marks=pytest.mark.thorough)]
)
def test_processes_that_share_each_layer_train_the_parameters_of_one(trainable: Trainable) -> None:
    """Of a layer cut by columns the adapter's B is cut, of one cut by rows its A. Copied norms of heads stay frozen."""
    one, two = Layout(1), Layout(1, tp=2)
    with comparison(trainable) as compared:
        expected = compared.trained(one)
        assert relative_difference(compared.trained(two), expected) < 1e-9
        assert relative_difference(compared.continued(two, one), expected) < 1e-9


@pytest.mark.thorough
def test_adapters_are_shared_out_over_layers_and_data_at_once_and_continue_any_layout() -> None:
    one, four = Layout(1), Layout(2, tp=2)
    with comparison(LORA) as compared:
        expected = compared.trained(one)
        assert relative_difference(compared.trained(four), expected) < 1e-9
        assert relative_difference(compared.continued(one, four), expected) < 1e-9
        assert relative_difference(compared.continued(four, one), expected) < 1e-9


def test_two_processes_gather_the_whole_adapter_on_the_first(model_directory: Path) -> None:
    def work(parallel: Parallel) -> None:
        learner = exact_learner(model_directory, parallel, trainable=LORA)
        take_steps(learner, 1, 30, parallel)
        found, trained = gather_adapter(learner.causal_lm, parallel), full_parameters(learner)
        if not parallel.is_main:
            assert found == {}
            return
        assert len(found) == len(lora_tensors(trained))
        for name, tensor in found.items():
            inside = name.removeprefix("base_model.model.").replace(".weight", f".{ADAPTER}.weight")
            assert torch.equal(tensor, trained[inside])

    run(Layout(2), work)


def test_a_resume_continues_bit_by_bit_from_what_is_trained_alone(
    model_directory: Path, tmp_path: Path, alone: Parallel
) -> None:
    learner = exact_learner(model_directory, alone, trainable=LORA)
    take_steps(learner, 2, 30, alone)
    Checkpoints(tmp_path, alone).save(learner, {})
    take_steps(learner, 4, 30, alone)
    path = latest(tmp_path)
    assert path
    assert {name.removeprefix("causal_lm.") for name in stored_tensors(path)} == lora_tensors(full_parameters(learner))
    resumed = exact_learner(model_directory, alone, trainable=LORA)
    load(resumed, path, alone)
    take_steps(resumed, 4, 30, alone)
    expected = full_parameters(learner)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in full_parameters(resumed).items())
    for other in (EVERYTHING, Trainable(lora_rank=2, lora_alpha=8.0)):
        with pytest.raises(
            DataError, match=r"tensors differ from those that this start trains.* expected the same model, lora_rank"
        ):
            load(exact_learner(model_directory, alone, trainable=other), path, alone)


def test_an_exported_checkpoint_of_adapters_is_what_was_published(model_directory: Path, tmp_path: Path) -> None:
    accounting = {"model_name_or_path": str(model_directory), "trainable": LORA.model_dump()}
    with parallel_session("cpu", num_threads=1) as alone:
        learner = exact_learner(model_directory, alone, trainable=LORA)
        take_steps(learner, 2, 30, alone)
        Checkpoints(tmp_path / "checkpoints", alone).save(learner, accounting)
        published = write_weights(learner.causal_lm, model_directory, tmp_path / "published", alone).path
    checkpoint = f"--checkpoint={latest(tmp_path / 'checkpoints')}"
    exported = export(ExportConfig.load([checkpoint, f"--output_dir={tmp_path / 'exported'}"])).path
    assert (exported / "model.safetensors").read_bytes() == (published / "model.safetensors").read_bytes()
    alone_there = export(ExportConfig.load([checkpoint, f"--output_dir={tmp_path / 'adapter'}", "--adapter=true"])).path
    merge_into(model := Path(shutil.copytree(model_directory, tmp_path / "model")), read_adapter(alone_there))
    whole = load_file(published / "model.safetensors")
    assert all(torch.equal(tensor, whole[name]) for name, tensor in load_file(model / "model.safetensors").items())


def test_the_kl_term_sees_the_base_below_the_adapters_as_it_would_see_a_second_copy(
    model_directory: Path, alone: Parallel
) -> None:
    parameters, kls = [], []
    for reference in (None, model_directory):
        learner = open_learner(
            model_directory,
            LossConfig(kl_coefficient=0.5, reference_model=reference),
            OPTIMIZER,
            alone,
            LearnerOptions(trainable=LORA, dtype="float64"),
        )
        assert learner.reference is not None
        own_copy = learner.reference.lm is not learner.lm
        assert own_copy is (reference is not None)
        with exact_norms(learner.reference.lm.causal_lm) if own_copy else nullcontext():
            metrics = take_steps(learner, 3, 30, alone)
        parameters.append(full_parameters(learner))
        kls.append({name: value for name, value in metrics.items() if "/kl" in name})
    assert kls[0]
    assert all(value > 0 for value in kls[0].values())
    assert kls[0] == pytest.approx(kls[1], rel=1e-9)
    assert relative_difference(parameters[0], parameters[1]) < 1e-9


def test_with_adapters_off_the_model_is_its_base_bit_by_bit_and_then_itself_again(
    adapted: Learner, model_directory: Path
) -> None:
    model = whole(adapted, model_directory)
    expected = logits(model)
    with adapters_off(model):
        assert torch.equal(logits(model), logits(load_model(model_directory, dtype="float64")))
    assert torch.equal(logits(model), expected)


def test_adapters_begin_alike_whatever_the_random_state_and_leave_it_alone(model_directory: Path) -> None:
    found = []
    for state in (1, 2):
        torch.manual_seed(state)
        model = load_model(model_directory, dtype="float64", trainable=LORA)
        found.append(model.state_dict())
        assert torch.rand(1).equal(torch.rand(1, generator=torch.Generator().manual_seed(state)))
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())
    other = load_model(model_directory, dtype="float64", trainable=LORA.model_copy(update={"seed": 5})).state_dict()
    name = next(name for name in other if ".lora_A." in name)
    assert not torch.equal(other[name], found[0][name])


def test_target_modules_choose_layers_and_never_the_head(model_directory: Path) -> None:
    def layers(*names: str) -> dict[str, LoraLayer]:
        chosen = Trainable(lora_rank=4, lora_target_modules=list(names))
        return lora_layers(load_model(model_directory, trainable=chosen))

    assert set(layers("q_proj")) == {f"model.layers.{i}.self_attn.q_proj" for i in (0, 1)}
    assert set(layers("layers.1.mlp.up_proj")) == {"model.layers.1.mlp.up_proj"}
    assert len(layers("all-linear")) == 2 * 7
    for name in ("lm_head", "embed_tokens", "wq"):
        with pytest.raises(
            ConfigError, match=f"'{name}' is no linear layer inside the model; .* such as down_proj, gate"
        ):
            layers(name)


def test_what_cannot_be_trained_so_is_refused_with_the_reason(model_directory: Path) -> None:
    with pytest.raises(ValueError, match="lora_rank freezes the whole model already"):
        Trainable(lora_rank=4, freeze=["*"])
    with pytest.raises(
        ConfigError, match=r"freeze: 'model\.embed\.\*' is the name of no parameter; the model has model"
    ):
        load_model(model_directory, trainable=Trainable(freeze=["model.embed.*"]))
    with pytest.raises(ConfigError, match=r"freeze: '\*' leave nothing to train"):
        load_model(model_directory, trainable=Trainable(freeze=["*"]))


def test_adapters_whose_parts_would_not_compute_the_whole_are_not_split(model_directory: Path) -> None:
    def work(parallel: Parallel) -> None:
        for setting, reason in (
            ("use_dora", "use_dora is on: the lengths"),
            ("lora_dropout", "lora_dropout is above 0"),
        ):
            trainable = Trainable.model_validate({"lora_rank": 4, setting: 0.5 if setting == "lora_dropout" else True})
            with pytest.raises(ConfigError, match=f"tp_size is 2, and {reason}.*; expected plain adapters"):
                cut_layers(load_model(model_directory, trainable=trainable), parallel.mesh["tp"], parallel.device)

    run(Layout(1, tp=2), work)


def test_freezing_one_of_two_tied_parameters_freezes_the_other_and_says_so(
    model_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        model = load_model(model_directory, trainable=Trainable(freeze=["lm_head.*"]))
    assert not model.get_input_embeddings().weight.requires_grad
    assert "freeze: lm_head.weight is tied to model.embed_tokens.weight, which is frozen with it" in caplog.text
