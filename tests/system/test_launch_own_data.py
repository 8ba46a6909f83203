"""A launch with the user's model, data and flags: it uses nothing of the bundled example, and loses no flag."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sampler.engine.keeper.config import KeeperConfig
from sampler.settings import SamplerConfig
from shared.configuration.loading import ServiceConfig
from shared.configuration.option_names import SUCCESSORS, unknown_option
from shared.configuration.sections import settings_of
from shared.documents import TaskPayload
from shared.errors import ConfigError
from tandem.launch import commands
from tandem.launch.places import EXAMPLE, ROOT
from tandem.launch.service_flags import split_arguments
from tandem.launch.settings import BUNDLED, LaunchConfig
from tests.system.processes import PATIENCE_S, PATIENT
from trainer.settings.config import TrainerConfig

pytestmark = pytest.mark.timeout(900)
SERVICES: tuple[type[ServiceConfig], ...] = (LaunchConfig, SamplerConfig, KeeperConfig, TrainerConfig)


@pytest.fixture
def own_tasks(tmp_path: Path) -> Path:
    path = tmp_path / "own.jsonl"
    lines = [json.dumps({"id": f"s{n}", "query": f"What is {n}+{n}?", "answer": str(2 * n)}) for n in range(8)]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def own_model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_the_bundled_tasks_come_with_their_tools_and_their_held_out_tasks() -> None:
    config = LaunchConfig.load(["demo"])
    assert (config.tools, config.eval_files, config.has_evaluation) == (BUNDLED, [EXAMPLE / "eval.jsonl"], True)


def test_own_tasks_get_neither_the_bundled_tools_nor_the_bundled_evaluation(own_tasks: Path) -> None:
    config = LaunchConfig.load(["demo", "--train_file", str(own_tasks)])
    assert (config.tools, config.eval_files, config.has_evaluation) == (None, [], False)
    assert "--mcp_manager_url" not in commands.sampler([config], config.tools)
    asked = LaunchConfig.load(["demo", "--train_file", str(own_tasks), "--mcp_manager_url", BUNDLED])
    assert asked.tools == BUNDLED


def test_own_held_out_tasks_are_evaluated_without_the_bundled_tools(own_tasks: Path) -> None:
    config = LaunchConfig.load(["demo", "--only_evaluate", "true", "--eval_file", str(own_tasks)])
    assert (config.tools, config.eval_files) == (None, [own_tasks])


def test_an_empty_eval_file_is_no_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not LaunchConfig.load(["demo", "--eval_file", ""]).has_evaluation
    monkeypatch.setenv("EVAL_FILE", "")
    assert not LaunchConfig.load(["demo"]).has_evaluation
    with pytest.raises(ConfigError, match="nothing to evaluate: EVAL_FILE is empty"):
        LaunchConfig.load(["demo", "--only_evaluate", "true"])


@pytest.mark.parametrize("method", ["minirl", "grpo", "eval"])
def test_the_settings_of_the_bundled_model_are_not_used_for_another_one(
    method: str, own_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settings(*flags: str) -> str:
        return str(LaunchConfig.load(["demo", "--method", method, *flags]).config)

    assert settings() == f"assets/example/{method}.yml"
    assert settings("--model", str(own_model)) == f"assets/{method}.yml"
    assert settings("--model_name_or_path", str(own_model)) == f"assets/{method}.yml"
    assert settings("--config", "assets/mix.yml") == "assets/mix.yml"
    monkeypatch.setenv("MODEL", str(own_model))
    assert settings() == f"assets/{method}.yml"


def test_a_service_s_flag_reaches_the_services_that_have_it() -> None:
    flags = "--loss_calculater GRPO --max_turns=3 --num_samplers 1 --log_level WARNING --max_steps 7"
    config = LaunchConfig.load(["demo", *flags.split()])
    assert config.trainer_settings.get("max_steps", int) == 7, (
        "the launcher waits for the steps that the command line asks for"
    )
    assert config.num_samplers == 1
    assert config.service_flags == {
        "sampler": ["--max_turns=3", "--log_level=WARNING"],
        "keeper": ["--log_level=WARNING"],
        "trainer": ["--loss_calculater=GRPO", "--log_level=WARNING", "--max_steps=7"],
    }
    assert commands.trainer(config)[-3:] == config.service_flags["trainer"]
    assert commands.sampler([config], None)[-2:] == ["--max_turns=3", "--log_level=WARNING"]
    assert commands.keeper(config, None)[-1] == "--log_level=WARNING"


@pytest.mark.thorough
def test_a_flag_with_its_section_reaches_the_trainer_alone(tmp_path: Path) -> None:
    config = LaunchConfig.load(["demo", "--optimizer.max_steps", "7", "--model.dtype=bfloat16", "--num_samplers", "1"])
    assert config.trainer_settings.get("max_steps", int) == 7
    assert config.num_samplers == 1
    assert config.service_flags["trainer"] == ["--optimizer.max_steps=7", "--model.dtype=bfloat16"]
    (file := tmp_path / "run.yml").write_text("trainer: {optimizer: {max_steps: 9}}")
    assert LaunchConfig.load(["demo", "--config", str(file)]).trainer_settings.get("max_steps", int) == 9
    with pytest.raises(ConfigError, match=r"unknown option 'optimizer\.max_step'; did you mean optimizer\.max_steps"):
        LaunchConfig.load(["demo", "--optimizer.max_step", "7"])


def test_wrong_flags_stop_the_start_with_a_sentence_each() -> None:
    names = ["--max_turn", "3", "--lr_scheduler_type", "cosine", "--bf16", "--engine_timeout_s"]
    with pytest.raises(ConfigError) as caught:
        LaunchConfig.load(["demo", *names])
    assert [line.partition("; did")[0] for line in str(caught.value).splitlines()] == [
        "unknown option 'max_turn'",
        "unknown option 'lr_scheduler_type': AgentRL's name; its successor here: lr_schedule (docs/start/from_agentrl.md)",
        "unknown option 'bf16': AgentRL's name; its successor here: dtype bfloat16 (docs/start/from_agentrl.md)",
        "--engine_timeout_s has no value; expected --engine_timeout_s VALUE",
    ]
    assert "did you mean max_turns" in str(caught.value)


def test_wrong_values_of_several_services_are_all_named() -> None:
    with pytest.raises(ConfigError) as caught:
        LaunchConfig.load(["demo", "--max_turns", "many", "--epsilon", "2"])
    assert "max_turns is 'many'" in str(caught.value)
    assert "epsilon is 2.0; expected at most 1" in str(caught.value)


def test_options_set_by_the_launcher_are_refused_with_the_reason() -> None:
    with pytest.raises(
        ConfigError, match="--output_dir is set by the launcher: checkpoints and metrics are in output/RUN"
    ):
        LaunchConfig.load(["demo", "--output_dir", "x"])


def test_an_unknown_option_of_a_service_names_its_successor_or_the_nearest(tmp_path: Path) -> None:
    for given, said in (("torch_dtype", "dtype"), ("max_turnz", "did you mean max_turns")):
        with pytest.raises(ConfigError, match=said):
            SamplerConfig.load([f"--{given}", "1"])
        (tmp_path / "run.yml").write_text(f"sampler: {{{given}: 1}}")
        with pytest.raises(ConfigError, match=said):
            SamplerConfig.load(["--config", str(tmp_path / "run.yml")])


def test_every_successor_exists() -> None:
    options = {name for service in SERVICES for name in settings_of(service)} | set(TaskPayload.model_fields)
    for name, successor in SUCCESSORS.items():
        assert name not in options, f"{name} is an option here: it needs no successor"
        if not successor.startswith("nothing"):
            assert re.split(r"[ :(,]", successor)[0] in options, f"{name}: {successor}"
    assert unknown_option("x", ["cosine"]) == "unknown option 'x'; expected one of cosine"


def test_splitting_keeps_the_launchers_arguments_in_order() -> None:
    own, others = split_arguments(["demo", "--a", "1", "--x=2", "--b=3", "--y", "-4", "--z"], ["a", "b"])
    assert own == ["demo", "--a", "1", "--b=3"]
    assert others == {"x": "2", "y": "-4", "z": ""}


@pytest.mark.thorough
@pytest.mark.slow
def test_a_run_on_own_tasks_trains_without_tools_and_evaluation_and_ends(run: str, own_tasks: Path) -> None:
    flags = ["--train_file", str(own_tasks), "--num_samplers", "1", "--num_generations", "2", "--max_steps", "1"]
    flags += ["--groups_per_step", "2", "--max_turns", "1", "--max_new_tokens", "4"]
    flags += ["--drop_zero_advantage", "false"]  # a step of equal rewards counts too
    command = [sys.executable, "-m", "tandem.launch", run, "--method", "minirl", *flags]
    process = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | PATIENT, timeout=PATIENCE_S, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "tools: none" in process.stdout
    assert "no evaluation" in process.stdout
    assert "trained 1 steps" in process.stdout
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
