"""Foreign agents as a tenant of the sampler. Guide: docs/bring/any_agent.md."""

import shutil
from collections.abc import Mapping, Sequence
from typing import ClassVar

from sampler.core.settings.core_config import CoreConfig
from sampler.core.tenant import Tenant, TenantState
from sampler.gateway.agent_sandbox import AgentSandbox
from sampler.gateway.child import split
from sampler.gateway.config import AgentPlayConfig
from sampler.gateway.preload import PreloadedInterpreter
from sampler.gateway.server import GatewayServer
from shared.errors import ConfigError
from shared.store import Store
from shared.user_code.loading import load_function


class AgentTenant(Tenant):
    kinds: ClassVar[Mapping[str, str]] = {"agent": "sampler.gateway.agent_sampler:AgentSampler"}

    def default_kind(self, config: CoreConfig) -> str | None:
        settings = config.part(AgentPlayConfig).agents
        return "agent" if settings.agent or settings.command else None

    def check(self, config: CoreConfig) -> None:
        """Find a misspelt agent before a task fails on it. Raises ConfigError."""
        settings = config.part(AgentPlayConfig).agents
        if settings.agent is not None:
            load_function("agent", settings.agent)
        isolation = settings.isolation
        if settings.command is None or (
            isolation and isolation.agent_isolation == "container"
        ):  # its image has programs
            return
        program = split(settings.command.agent_command)[0]
        if "{" not in program and shutil.which(program) is None:
            where = "an executable file at that path" if "/" in program else "a program on PATH"
            raise ConfigError(
                f"agent_command is {settings.command.agent_command!r}: there is no {program!r}; expected {where}"
            )

    def opened(self, store: Store, config: CoreConfig) -> Sequence[TenantState]:
        return [GatewayServer(), PreloadedInterpreter(), AgentSandbox(config.part(AgentPlayConfig))]


TENANT = AgentTenant()
