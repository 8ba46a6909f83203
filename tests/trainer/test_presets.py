"""Presets are values to start from; what the user sets wins, in every place where it can be set."""

import re
from pathlib import Path

import pytest

from sampler.core.settings.groups import Advantage
from shared.configuration.sections import flat_values
from shared.documents.rules import RunRules
from shared.errors import ConfigError
from shared.rules.run_rules import Rules
from trainer.losses import Aggregation, LossConfig
from trainer.run.preset_check import preset_problem
from trainer.settings.config import TrainerConfig
from trainer.settings.ineffective import warn_of_unused
from trainer.settings.presets import PRESETS

ARGUMENTS = ["--run", "r", "--db_connection_string", "given", "--model_name_or_path", "."]


def load(*flags: str) -> TrainerConfig:
    return TrainerConfig.load([*ARGUMENTS, *flags])


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_valid_configuration_of_known_fields(name: str) -> None:
    config = load("--preset", name)
    for field, value in PRESETS[name].settings.items():
        assert flat_values(config)[field] == value
    assert isinstance(config.loss, LossConfig)
    assert PRESETS[name].source
    assert PRESETS[name].advantage in list(Advantage)


def test_a_flag_a_variable_and_a_yaml_key_win_over_the_preset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "run.yml"
    file.write_text("trainer: {preset: dapo, epsilon: 0.11}")
    monkeypatch.setenv("TANDEM_TRAINER_EPSILON_HIGHER", "0.33")
    config = load("--config", str(file), "--token_level_loss", "false")
    assert (config.loss.loss, config.loss.epsilon, config.loss.epsilon_higher) == ("GRPO", 0.11, 0.33)
    assert config.loss.aggregation is Aggregation.SEQUENCE_MEAN


def test_without_a_preset_the_defaults_are_those_of_minirl() -> None:
    assert load().loss.model_dump(exclude={"averaging"}) == load("--preset", "minirl").loss.model_dump(
        exclude={"averaging"}
    )
    assert load().loss.aggregation is load("--preset", "minirl").loss.aggregation


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--preset", "grop"], "preset 'grop' is unknown; expected one of minirl"),
        (["--loss", "CrossEntropy"], "set drop_zero_advantage to false"),
        (["--kl_coefficient", "0.1"], "kl_coefficient gives records without advantage a gradient too"),
        (["--updates_per_step", "32"], "expected at most groups_per_step=16"),
        (["--rollout_is", "token"], "has that ratio in it already"),
        (["--epsilon", "2"], "epsilon is 2.0; expected at most 1"),
        (["--adam_beta1", "1"], "adam_beta1 is 1; Input should be less than 1"),
        (["--keep_best_checkpoints", "1"], "expected eval_steps to be a multiple of save_steps"),
        (["--keep_best_checkpoints", "1", "--eval_steps", "3"], "but eval_steps 3 and save_steps 10"),
        (["--loss_calculater", "GRPPO"], "loss"),
        (["--kl_estimator", "k3"], "kl_coefficient is missing, which kl_estimator needs: give it as --kl_coefficient"),
        (["--reference_model", "."], "kl_coefficient is missing"),
        (["--lora_alpha", "16"], "lora_rank is missing, which lora_alpha needs: give it as --lora_rank"),
        (["--data_db", "mongodb://h"], "data_run is missing"),
    ],
)
def test_settings_that_contradict_each_other_stop_the_start_with_a_message(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(*flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "--proximal_logprobs loglinear",
            "proximal_logprobs is loglinear, but .* clip_anchor is rollout: it needs prox",
        ),
        (
            "--token_level_loss true --loss_aggregation token-sum",
            "token_level_loss is True, .* loss_aggregation token-sum",
        ),
        ("--token_level_loss true --skip_length_normalization true", "skip_length_normalization is True, but"),
        (
            "--loss_calculater GRPO --length_scale 8",
            "length_scale is 8.0, .* by seq-mean-token-mean: it needs seq-mean-to",
        ),
        ("--dual_clip 3", "dual_clip is 3.0, but has no effect: loss MINIRL does not look at it"),
        ("--loss_calculater GRPO --importance_weight_cap_ratio 9", "importance_weight_cap_ratio is 9.0, but"),
        ("--loss REINFORCE --clip_anchor proximal", "clip_anchor is proximal, .* REINFORCE clips no ratio"),
        ("--log_ratio_penalty 1 --drop_zero_advantage false", "log_ratio_penalty is 1.0, but"),
        ("--rollout_is_cap 3", "rollout_is_cap is 3.0, but has no effect: rollout_is is none"),
        ("--retrained_interval 2", "retrained_interval is 2, but has no effect: max_trained_count is 1"),
        ("--min_lr_ratio 0", "min_lr_ratio is 0.0, but has no effect: lr_schedule is constant"),
        (
            "--full_every 3",
            "full_every is 3, but has no effect: publish_mode is full",
        ),
        ("--broadcast_port 80", "broadcast_port is 80, but has no effect: weight_transport is disk"),
    ],
)
def test_a_setting_that_does_nothing_is_told_with_what_makes_it_so(
    flags: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = load(*flags.split())
    warn_of_unused(config, config.without_effect())
    assert re.search(message, caplog.text)


@pytest.mark.parametrize(
    "flags", ["decoupled_ppo --rollout_is none", "dapo --loss_aggregation token-sum", "dr_grpo --token_level_loss true"]
)
def test_what_a_preset_brings_may_be_made_meaningless(flags: str) -> None:
    assert not load("--preset", *flags.split()).without_effect()


def test_a_preset_for_another_estimator_than_the_run_has_is_told_with_both_values() -> None:
    rules = RunRules.of("main", 2, Rules(template_digest="", advantage="mean").sections(), "a person")
    told = preset_problem("demo", "grpo", rules)
    assert told is not None
    assert "preset grpo is for advantage=zscore, and the run has mean (rules 2 of policy main, by a person)" in told
    assert "tandem rules demo --set advantage=zscore" in told
    assert preset_problem("demo", "minirl", rules) is None
    assert preset_problem("demo", "grpo", None) is None
