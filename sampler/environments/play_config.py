"""Settings for episodes in environments. Guide: docs/bring/environments.md. They are a section of the sampler's configuration."""

from typing import Annotated

from pydantic import Field

from sampler.core.settings.core_config import CoreConfig
from shared.configuration.secrets import secret_field
from shared.rules.episodes import GameRules

Seconds = Annotated[float, Field(gt=0)]


class EnvironmentSettings(GameRules):
    """Episodes in environments, and games between seats."""

    environment_controllers: dict[str, str] = Field(
        {},
        description="Environments that AgentRL's controller, or another one with its protocol, serves: "
        '{"dbbench-std": "http://host:5020/api"}. Others are looked for among the run\'s python -m sampler.environments.',
    )
    environment_token: str | None = secret_field(
        None,
        description="Bearer token of the run's own services of environments; it is not sent to environment_controllers.",
    )
    environment_wait_s: Seconds = Field(
        60.0,
        description="Time an episode waits for room in an environment; then its slot is released, and no failure is counted.",
    )
    environment_timeout_s: Seconds = Field(
        300.0,
        description="Time-out of the start of a session, and of one step; then it is an infrastructure failure. The run's own "
        "services have shorter ones (start_s, step_s).",
    )
    environment_renew_controllers: bool = Field(
        False,
        description="Renew sessions of environment_controllers too, by an empty message: only tasks that support it ignore it.",
    )
    max_starting_environments: int = Field(
        64,
        gt=0,
        description="Sessions that this process starts at one service of environments at once; further ones wait.",
    )


class EnvironmentPlayConfig(CoreConfig):
    """The core's settings, with those of environments."""

    environments: EnvironmentSettings = EnvironmentSettings()
