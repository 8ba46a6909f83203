"""Dropout is off while training unless it is asked for, also where a model's config sets it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, OPTConfig, PhimoeConfig, PreTrainedConfig, PreTrainedModel, Qwen3Config

from tests.trainer.builders import VOCABULARY, gradients, logprobs_one_by_one, random_group, relative_difference
from tests.trainer.launched import EXAMPLE, OPTIMIZER
from trainer.losses import Denominators, LossConfig, LossName
from trainer.modeling.memory import checkpoint_layers
from trainer.modeling.model import load_model
from trainer.modeling.trainable import adapters_off, drop_inputs, lora_layers
from trainer.process.parallel import Parallel
from trainer.settings.config import TrainerConfig
from trainer.settings.memory import MemorySettings
from trainer.settings.trained_parts import Trainable
from trainer.step.learner import Learner
from trainer.step.opening import LearnerOptions, open_learner
from trainer.trees.packing import pack
from trainer.trees.tree import Merging, merge

SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
NOISY = {
    "attention dropout": Qwen3Config(
        **SIZES, intermediate_size=48, num_key_value_heads=2, head_dim=8, attention_dropout=0.5
    ),
    "dropout inside layers, and layer drop": OPTConfig(
        **SIZES, ffn_dim=48, word_embed_proj_dim=32, dropout=0.5, attention_dropout=0.5, layerdrop=0.5
    ),
    "noise of routers": PhimoeConfig(
        **SIZES,
        intermediate_size=48,
        num_key_value_heads=2,
        num_local_experts=4,
        router_jitter_noise=0.5,
        input_jitter_noise=0.5,
    ),
}
noisy = pytest.mark.parametrize("config", NOISY.values(), ids=NOISY.keys())


def made(config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    assert isinstance(model, PreTrainedModel)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def saved(config: PreTrainedConfig, directory: Path) -> PreTrainedModel:
    model = made(config)
    model.save_pretrained(directory)
    return model


def mean_logprob(learner: Learner) -> float:
    tree = merge(random_group(3), merging=Merging.LINEAR if learner.linear else Merging.TREE)
    rows = pack([tree], 40, one_sequence_per_row=learner.linear)
    result = learner.step(rows, Denominators.count(torch.from_numpy(tree.trained_tokens_T)))
    return result.metrics["loss/logprob_mean_nats"]


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view")  # OPT's layers do
@noisy
def test_a_step_computes_what_an_engine_computes(config: PreTrainedConfig, alone: Parallel, tmp_path: Path) -> None:
    model = saved(config, tmp_path).eval()
    with torch.no_grad():
        expected = [float(token.new) for tokens in logprobs_one_by_one(model, random_group(3)) for token in tokens]
    found = mean_logprob(open_learner(tmp_path, LossConfig(loss=LossName.GRPO), OPTIMIZER, alone))
    assert found == pytest.approx(sum(expected) / len(expected), rel=1e-5)


def test_dropout_that_is_asked_for_is_on_and_its_sequences_are_forwarded_alone(alone: Parallel, tmp_path: Path) -> None:
    saved(NOISY["attention dropout"], tmp_path)
    learners = [
        open_learner(tmp_path, LossConfig(loss=LossName.GRPO), OPTIMIZER, alone, LearnerOptions(dropout=True))
        for _ in range(2)
    ]
    assert all(learner.linear for learner in learners)
    first, second = (mean_logprob(learner) for learner in learners)
    assert first != pytest.approx(second, rel=1e-6)


@noisy
def test_layers_that_are_computed_again_have_no_dropout_either(config: PreTrainedConfig, alone: Parallel) -> None:
    ids = torch.randint(0, VOCABULARY, (1, 12), generator=torch.Generator().manual_seed(0))
    found: list[dict[str, Tensor]] = []
    for checkpointed in (False, True):
        model: Any = made(config).eval()
        checkpoint_layers(model, MemorySettings(activation_checkpointing=checkpointed), alone)
        model(input_ids=ids, use_cache=False).logits.square().sum().backward()
        found.append(gradients(model))
    assert relative_difference(*found) < 1e-5


def adapted(directory: Path, **settings: float | bool) -> PreTrainedModel:
    """With adapters that are no longer zero."""
    model = load_model(directory, trainable=Trainable.model_validate({"lora_rank": 4, **settings}))
    torch.manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("use_dora", [False, True])
def test_adapters_leave_inputs_out_once_training_begins_and_the_base_below_them_never_does(
    use_dora: bool, model_directory: Path
) -> None:
    ids = torch.tensor([[1, 5, 2, 7, 7, 30]])

    def answers(model: PreTrainedModel) -> list[Tensor]:
        with torch.no_grad():
            return [model(input_ids=ids).logits for _ in range(2)]

    exact = answers(adapted(model_directory, use_dora=use_dora))
    model = adapted(model_directory, use_dora=use_dora, lora_dropout=0.5)
    assert all(torch.equal(answer, exact[0]) for answer in answers(model)), "exports and what-ifs leave nothing out"
    drop_inputs(model)
    one, other = answers(model)
    assert not torch.equal(one, other)
    with adapters_off(model):
        assert torch.equal(answers(model)[0], answers(load_model(model_directory))[0])


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_a_learner_of_adapters_that_drop_takes_one_sequence_at_a_time(
    share: float, model_directory: Path, alone: Parallel
) -> None:
    options = LearnerOptions(trainable=Trainable.model_validate({"lora_rank": 4, "lora_dropout": share}))
    learner = open_learner(model_directory, LossConfig(loss=LossName.CROSS_ENTROPY), OPTIMIZER, alone, options)
    layers: list[Any] = [*lora_layers(learner.causal_lm).values()]
    assert learner.linear is bool(share)
    assert {layer.training for layer in layers} == {bool(share)}
    assert not learner.causal_lm.training
    assert mean_logprob(learner) < 0


def test_the_mean_over_masks_is_the_answer_without(model_directory: Path) -> None:
    """Of one layer: what is kept counts 1 / (1 - p)."""
    model = adapted(model_directory, lora_dropout=0.25)
    layer: Any = next(iter(lora_layers(model).values()))
    x_ND = torch.randn(4, layer.in_features)
    with torch.no_grad():
        exact = layer(x_ND)
        drop_inputs(model)
        mean = torch.stack([layer(x_ND) for _ in range(5000)]).mean(0)
    assert float((mean - exact).abs().max()) < 0.03 * float(exact.abs().max())


def test_reinforcement_learning_refuses_adapters_that_drop() -> None:
    settings = {"run": "r", "db_connection_string": "given", "model_name_or_path": EXAMPLE, "lora_rank": 4}
    TrainerConfig(**settings)
    with pytest.raises(
        ValueError, match=r"lora_dropout is 0\.1; expected 0 in reinforcement learning: .* ratio would be noise"
    ):
        TrainerConfig(**settings, lora_dropout=0.1)
