"""A launch of several policies: separate parts per policy, and refused settings."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from shared.errors import ConfigError
from tandem.launch import commands
from tandem.launch.children import Children
from tandem.launch.places import ROOT
from tandem.launch.policies import load_policies
from tandem.launch.services import start_trainers

DEBATE = """
launch: {policy: solver, num_processes: 2}
policies:
  judge: {launch: {model: MODEL, engine_urls: ["http://j:1"], num_processes: 3}, trainer: {max_steps: 9}}
  solver: {}
trainer: {max_steps: 4}
"""


@pytest.fixture
def debate(tmp_path: Path) -> Path:
    path = tmp_path / "debate.yml"
    path.write_text(DEBATE.replace("MODEL", str(tmp_path)))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-model"}))
    return path


def flag(command: list[str], name: str) -> str:
    return command[command.index(f"--{name}") + 1]


def test_each_policy_has_its_own_model_engines_steps_folder_and_logs_and_the_owner_is_first(debate: Path) -> None:
    solver, judge = load_policies(["demo", "--config", str(debate)])
    assert [solver.policy, judge.policy] == ["solver", "judge"]
    assert [solver.engine_urls, judge.engine_urls] == [[], ["http://j:1"]]
    assert [one.trainer_settings.get("max_steps", int) for one in (solver, judge)] == [4, 9]
    for config, model, processes in ((solver, "assets/example/model", "2"), (judge, str(debate.parent), "3")):
        trainer = commands.trainer(config)
        assert flag(trainer, "policy") == config.policy
        assert flag(trainer, "model_name_or_path") == model
        assert flag(trainer, "num_processes") == processes
        assert flag(trainer, "output_dir") == str(ROOT / "output" / "demo" / config.policy)
        assert config.log_path(config.part("train", 0)).name == f"demo_train_{config.policy}_0.log"
        assert flag(commands.keeper(config, None), "policy") == config.policy
    sampler = commands.sampler([solver, judge], "http://tools")
    assert flag(sampler, "policy") == "solver"
    assert json.loads(flag(sampler, "other_policies")) == {"judge": str(debate.parent)}


def test_a_frozen_policy_has_engines_and_no_trainer(debate: Path) -> None:
    debate.write_text(debate.read_text().replace("num_processes: 3}", "frozen: true}"))
    solver, judge = load_policies(["demo", "--config", str(debate)])
    assert (solver.frozen, judge.frozen) == (False, True)
    sampler = commands.sampler([solver, judge], None)
    assert json.loads(flag(sampler, "frozen_policies")) == ["judge"]
    started: list[str] = []
    starting = SimpleNamespace(start=lambda program: started.append(program.name))
    assert list(start_trainers([solver, judge], cast(Children, starting), "mongodb://db")) == ["solver"]
    assert started == ["trainer solver 0"]
    debate.write_text(debate.read_text().replace("solver: {}", "solver: {launch: {frozen: true}}"))
    with pytest.raises(ConfigError, match="policy 'solver', the owner of the tasks, is frozen"):
        load_policies(["demo", "--config", str(debate)])


def test_trainers_of_several_machines_use_one_rendezvous_port_per_policy(debate: Path) -> None:
    spread = ["--num_machines", "2", "--machine_rank", "1", "--master_addr", "m0", "--master_port", "29500"]
    policies = load_policies(["demo", "--config", str(debate), *spread, "--db_connection_string", "mongodb://db"])
    ports = {flag(commands.trainer(config), "main_process_port") for config in policies}
    assert ports == {"29500", "29501"}


def test_a_single_policy_uses_the_runs_folder(tmp_path: Path) -> None:
    (config,) = load_policies(["demo", "--config", "assets/example/minirl.yml", "--policy", "mine"])
    assert config.policy_folder == config.folder
    assert config.part("train", 0) == "train_0"
    assert "--other_policies" not in commands.sampler([config], "http://tools")


def test_flags_of_services_are_for_every_policy(debate: Path) -> None:
    for config in load_policies(["demo", "--config", str(debate), "--drain_s", "3", "--warmup_steps", "5"]):
        assert "--drain_s=3" in commands.keeper(config, None)
        assert "--warmup_steps=5" in commands.trainer(config)
    with pytest.raises(ConfigError, match="drain_s"):
        load_policies(["demo", "--config", str(debate), "--drain_s=-3"])


@pytest.mark.thorough
def test_policies_that_are_adapters_share_an_engine(debate: Path) -> None:
    text = debate.read_text().replace("num_processes: 2", "engine_urls: ['http://j:1']")
    debate.write_text(text)
    shared = load_policies(["demo", "--config", str(debate), "--adapters", "engine"])
    assert [config.engine_urls for config in shared].count(["http://j:1"]) == 2


@pytest.mark.parametrize("in_file", [True, False])
def test_an_engine_that_loads_adapters_gets_no_dora(debate: Path, in_file: bool) -> None:
    words = ["demo", "--config", str(debate)]
    load_policies([*words, "--adapters", "engine"])
    if in_file:
        settings = "solver: {trainer: {model: {lora: {lora_rank: 4, use_dora: true}}}}"
        debate.write_text(debate.read_text().replace("solver: {}", settings))
    else:
        words += ["--lora_rank", "4", "--use_dora", "true"]
    load_policies(words)
    with pytest.raises(ConfigError, match=r"use_dora is true and adapters is engine; expected adapters: merged"):
        load_policies([*words, "--adapters", "engine"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("policy: solver, ", ""), "policy is 'main'; expected one of its policies: judge, solver"),
        (
            ("solver: {}", "solver: {launch: {num_samplers: 3}}"),
            "policies.solver.launch: 'num_samplers' is a setting of the run",
        ),
        (("num_processes: 2", "engine_urls: ['http://j:1']"), "engine http://j:1 is given to 2 policies"),
    ],
)
def test_invalid_policies_are_refused_with_the_remedy(debate: Path, change: tuple[str, str], said: str) -> None:
    text = debate.read_text()
    assert change[0] in text
    debate.write_text(text.replace(*change))
    with pytest.raises(ConfigError) as caught:
        load_policies(["demo", "--config", str(debate)])
    assert said in str(caught.value)
