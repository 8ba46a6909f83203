"""What the launcher predicts of the trainer's memory is what a learner of those settings has, and it warns by it."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from scripts.bench.memory_parts import parts_of
from shared.errors import ConfigError
from shared.processes import machine_memory
from tandem.launch import step_cost
from tandem.launch.policies import load_policies
from tandem.launch.trainer_memory import TrainedAs, predicted, trained_as
from tests.trainer.launched import EXAMPLE, rows_of_step
from trainer.losses import LossConfig, LossName
from trainer.process.parallel import Parallel
from trainer.quantize import QuantizeConfig, quantize
from trainer.settings.optimizer import OptimizerConfig
from trainer.settings.trained_parts import Trainable
from trainer.step.opening import LearnerOptions, open_learner

WAYS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"lora_rank": 4},
    "dora": {"lora_rank": 4, "use_dora": True},
    "nf4": {"lora_rank": 4, "base_quantization": "nf4"},
}


@pytest.mark.parametrize("optim", ["adamw", "adamw_8bit", "adafactor", "muon"])
@pytest.mark.parametrize("way", WAYS)
def test_weights_adapters_and_states_have_the_predicted_bytes(
    way: str, optim: Any, alone: Parallel, tmp_path: Path
) -> None:
    settings, model = WAYS[way], EXAMPLE
    if way == "nf4":
        quantize(QuantizeConfig(model_name_or_path=EXAMPLE, output_dir=tmp_path / "nf4"), Console(quiet=True))
        model = tmp_path / "nf4"
    loss, options = (
        LossConfig(loss=LossName.CROSS_ENTROPY),
        LearnerOptions(trainable=Trainable.model_validate(settings)),
    )
    learner = open_learner(model, loss, OptimizerConfig(optim=optim), alone, options)
    learner.step(*rows_of_step(0, 30, alone))
    found, expected = parts_of(learner, 0, 0), predicted(model, TrainedAs(optim=optim, **settings))
    assert (found.weights, found.adapters) == (expected.weights, expected.adapters)
    assert found.optimizer == pytest.approx(expected.optimizer, rel=0.01)


def test_the_launcher_warns_where_the_machine_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_cost, "machine_memory_bytes", lambda: 12_000_000)
    (full,) = load_policies(["demo"])
    assert "weights 0.0 GB" in str(step_cost.memory_warning(full))
    assert "states of adamw 0.0 GB), and this machine has 0.0 GB: set lora_rank" in str(step_cost.memory_warning(full))
    (small,) = load_policies(["demo", "--lora_rank", "4"])
    assert step_cost.memory_warning(small) is None, "adapters fit"
    (factored,) = load_policies(["demo", "--optim", "adafactor"])
    assert trained_as(factored.trainer_settings) == TrainedAs(optim="adafactor")
    assert step_cost.memory_warning(factored) is None
    monkeypatch.setattr(step_cost, "machine_memory_bytes", machine_memory.machine_memory_bytes)
    assert step_cost.memory_warning(full) is None


def test_a_number_type_that_the_trainer_does_not_know_is_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TANDEM_TRAINER_DTYPE", "float17")
    (config,) = load_policies(["demo"])
    with pytest.raises(ConfigError, match="dtype is 'float17'; expected float32, bfloat16, float64"):
        step_cost.memory_warning(config)
