"""`--help` of every service is one screen; its sections together have every setting once."""

import re

import pytest

from sampler.engine.keeper.config import KeeperConfig
from sampler.environments.config import EnvironmentsConfig
from sampler.mcp_docker.config import McpDockerConfig
from sampler.settings import GatewayConfig, SamplerConfig
from shared.configuration.help_text import ALL, WIDTH, by_section, help_text
from shared.configuration.loading import ServiceConfig
from shared.configuration.sections import settings_of
from tandem.launch.settings import LaunchConfig
from trainer.settings.config import TrainerConfig
from trainer.sft.config import SftConfig

SERVICES = (
    *(EnvironmentsConfig, GatewayConfig, KeeperConfig, LaunchConfig, McpDockerConfig, SamplerConfig, SftConfig),
    TrainerConfig,
)
SCREEN = 42  # lines
NAME = re.compile(r"^  --(\w+) ", re.MULTILINE)


@pytest.mark.parametrize("service", SERVICES)
def test_the_first_screen_is_one_screen(service: type[ServiceConfig]) -> None:
    lines = help_text(service).splitlines()
    assert len(lines) <= SCREEN
    assert max(map(len, lines)) <= WIDTH + 10  # an example is not broken
    assert lines[0].startswith(f"usage: {service.program} ")
    assert NAME.findall(help_text(service)) == list(service.most_set)
    assert all(
        setting in service.most_set
        for setting, one in settings_of(service).items()
        if one.required and setting != "run"
    )


@pytest.mark.parametrize("service", SERVICES)
def test_sections_have_every_setting_once(service: type[ServiceConfig]) -> None:
    shown = [name for section in by_section(service) for name in NAME.findall(help_text(service, section))]
    assert sorted(shown) == sorted(settings_of(service))
    assert sorted(NAME.findall(help_text(service, ALL))) == sorted(settings_of(service))
    assert max(map(len, by_section(service).values())) <= 36


def test_the_launcher_has_a_guide() -> None:
    assert "Several machines" in help_text(LaunchConfig, "guide")
