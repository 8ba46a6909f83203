"""The sampler's configuration, with the settings of its tenants: `python -m sampler --help` prints it."""

from typing import ClassVar

from sampler.environments.play_config import EnvironmentPlayConfig
from sampler.gateway.config import AgentSettings


class SamplerConfig(AgentSettings, EnvironmentPlayConfig):
    """The sampler's settings."""

    section: ClassVar[str] = "sampler"
    program: ClassVar[str] = "python -m sampler"
    tenants: ClassVar[tuple[str, ...]] = (
        "sampler.actors.tenant",
        "sampler.environments.tenant",
        "sampler.gateway.tenant",
    )


class GatewayConfig(SamplerConfig):
    """The sampler's settings; those of playing episodes (`sampler`, `agent`, concurrency) are not used."""

    program: ClassVar[str] = "python -m sampler.gateway"
