"""Presets are values to start from; whatever the user sets wins, wherever it was set."""

from pathlib import Path

import pytest

from sampler.group_config import Advantage
from shared.errors import ConfigError
from trainer.config import TrainerConfig
from trainer.losses import Aggregation, LossConfig
from trainer.presets import PRESETS

ARGUMENTS = ["--run", "r", "--db_connection_string", "given", "--model_name_or_path", "."]


def load(*flags: str) -> TrainerConfig:
    return TrainerConfig.load([*ARGUMENTS, *flags])


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_valid_configuration_of_known_fields(name: str) -> None:
    config = load("--preset", name)
    for field, value in PRESETS[name].settings.items():
        assert getattr(config, field) == value
    assert isinstance(config.loss(), LossConfig)
    assert PRESETS[name].source
    assert PRESETS[name].advantage in list(Advantage)


def test_a_flag_a_variable_and_a_yaml_key_win_over_the_preset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "run.yml"
    file.write_text("trainer: {preset: dapo, epsilon: 0.11}")
    monkeypatch.setenv("TANDEM_TRAINER_EPSILON_HIGHER", "0.33")
    config = load("--config", str(file), "--token_level_loss", "false")
    assert (config.loss_calculater, config.epsilon, config.epsilon_higher) == ("GRPO", 0.11, 0.33)
    assert config.loss().aggregation is Aggregation.SEQUENCE_MEAN


def test_without_a_preset_the_defaults_are_those_of_minirl() -> None:
    assert load().loss().model_dump(exclude={"token_level_loss", "skip_length_normalization"}) == load(
        "--preset", "minirl"
    ).loss().model_dump(exclude={"token_level_loss", "skip_length_normalization"})
    assert load().loss().aggregation is load("--preset", "minirl").loss().aggregation


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--preset", "grop"], "preset 'grop' is unknown; expected one of minirl"),
        (["--loss_calculater", "CrossEntropy"], "set drop_zero_advantage to false"),
        (["--kl_coefficient", "0.1"], "kl_coefficient gives records without advantage a gradient too"),
        (["--updates_per_step", "32"], "expected at most groups_per_step=16"),
        (["--rollout_is", "token"], "has that ratio in it already"),
        (["--epsilon", "2"], "epsilon is 2.0; expected at most 1"),
        (["--adam_beta1", "1"], "adam_beta1 is '1'; Input should be less than 1"),
        (["--keep_best_checkpoints", "1"], "expected eval_steps to be a multiple of save_steps"),
        (["--keep_best_checkpoints", "1", "--eval_steps", "3"], "but eval_steps 3 and save_steps 10"),
        (["--loss_calculater", "GRPPO"], "loss_calculater"),
    ],
)
def test_settings_that_contradict_each_other_stop_the_start_with_a_message(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(*flags)
