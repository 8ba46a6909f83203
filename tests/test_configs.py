"""Every example configuration loads: each section by the service that reads it, as the launcher would start it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file

from sampler.engine.keeper.keeper import KeeperConfig
from sampler.environments.config import EnvironmentsConfig
from sampler.settings import SamplerConfig
from shared.configuration.loading import POLICIES, SECTIONS, ServiceConfig, read_policies, read_section
from shared.configuration.sections import flattened, settings_of
from shared.errors import ConfigError
from shared.tasks.mix import TasksConfig
from tandem.launch.policies import load_policies
from tandem.launch.settings import LaunchConfig
from trainer.settings.config import TrainerConfig
from trainer.sft.config import SftConfig

ROOT = Path(__file__).parents[1]
SERVICES: list[type[ServiceConfig]] = [
    *(TrainerConfig, SftConfig, SamplerConfig, KeeperConfig, LaunchConfig, TasksConfig, EnvironmentsConfig)
]
ACCELERATE = sorted((ROOT / "assets").glob("fsdp2*.yml"))
AGENTS = ROOT / "assets" / "agent_config_example.yml"  # tests/sampler/agents/test_config.py
EXAMPLES = sorted(set((ROOT / "assets").rglob("*.yml")) - {*ACCELERATE, AGENTS})


def arguments(service: type[ServiceConfig], path: Path) -> list[str]:
    """A command line with all required options that are not in the YAML file."""
    if service is LaunchConfig:
        return ["demo", "--config", str(path)]
    whose = [f"--policy={policy}" for policy in read_policies(path) if service in (TrainerConfig, KeeperConfig)][:1]
    values: Mapping[str, Any] = {
        "run": "demo",
        "db_connection_string": "mongodb://127.0.0.1",
        "model_name_or_path": "assets/example/model",
        "train_file": "sft.jsonl",
        "output_dir": "output/demo",
        "environments": "gymnasium:FrozenLake-v1",
    }
    there = read_section(path, service)
    required = [name for name, setting in settings_of(service).items() if setting.required and name not in there]
    names = [*required, "train_file"] if service is SftConfig else required  # or a run
    flags = [f"--{name}={values[name]}" for name in names]
    return [*flags, *whose, "--config", str(path)]


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.section)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_configuration_loads(path: Path, service: type[ServiceConfig]) -> None:
    config = service.load(arguments(service, path))
    for name, value in flattened(service, read_section(path, service)).items():
        if name == "sources":  # each is a model of its own; their defaults are not in the file
            assert [source.model_dump(mode="json", exclude_unset=True) for source in config.sources] == value
            continue
        assert config.snapshot().get(name) == yaml.safe_load(yaml.safe_dump(value)), (
            f"{path}: {service.section}: {name}"
        )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_has_no_section_that_nothing_checks(path: Path) -> None:
    sections = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert set(sections) <= {service.section for service in SERVICES} | {POLICIES}


@pytest.mark.parametrize("path", [path for path in EXAMPLES if read_policies(path)], ids=lambda path: path.name)
def test_every_policy_of_an_example_has_its_own_settings(path: Path) -> None:
    launches = load_policies(["demo", "--config", str(path)])
    own = read_policies(path)
    assert {launch.policy for launch in launches} == own.keys()
    for policy, sections in own.items():
        for service in (TrainerConfig, KeeperConfig):
            config = service.load([*arguments(service, path), "--policy", policy])
            assert flattened(service, sections.get(service.section) or {}).items() <= config.snapshot().items()


@pytest.mark.parametrize("path", ACCELERATE, ids=lambda path: path.name)
def test_an_accelerate_configuration_loads(path: Path) -> None:
    assert load_config_from_file(str(path)).distributed_type == "FSDP"


def test_an_unknown_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wrong.yml").write_text("sampler: {max_turn: 4}")
    with pytest.raises(ConfigError, match="unknown key 'max_turn'"):
        SamplerConfig.load(arguments(SamplerConfig, tmp_path / "wrong.yml"))


def test_there_are_examples_and_every_service_has_a_section() -> None:
    assert {path.name for path in EXAMPLES} >= {"minirl.yml", "grpo.yml"}
    assert {service.section for service in SERVICES} <= set(SECTIONS)
