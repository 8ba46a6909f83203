"""Resources that the episodes of one sampler process share: database, engines, tools, agents."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sampler.core.api_models import Agents
from sampler.core.engines.pool.engine_pool import EnginePool
from sampler.core.engines.pool.engines import Engines
from sampler.core.engines.pool.policy_client import PolicyClient
from sampler.core.engines.pool.turn_sources import Source
from sampler.core.episode.model_acts import ModelActs
from sampler.core.parsers import Parser, get_parser
from sampler.core.rendering.template import ChatTemplate
from sampler.core.tools import ToolCatalog, ToolServer, Traffic, parse_servers
from sampler.core.tools.isolation import isolated
from sampler.environments.choosing import Environments
from sampler.gateway.agent_sandbox import AgentSandbox
from sampler.gateway.preload import PreloadedInterpreter
from sampler.gateway.server import GatewayServer
from sampler.settings import SamplerConfig
from shared.documents.actors import weights_of
from shared.documents.tool_schemas import Tools, ToolSchemas
from shared.errors import ConfigError
from shared.store import Store
from shared.unforeseen import Bugs

AWAY_SHOWN_S = 60.0  # after the last episode that missed a version: its slot is claimed again sooner
MOST_KEPT_TOOLS = 10_000  # bound on remembered hashes: every task may have its own list


class VersionsAway:
    """Versions that no engine serves, and that actors of this process's episodes are pinned to."""

    def __init__(self) -> None:
        self._missed: dict[tuple[str, int], tuple[float, float, str]] = {}  # first and last time, and what to do

    def missed(self, policy: str, version: int, why: str) -> None:
        now = time.monotonic()
        first, *_ = self._missed.get((policy, version), (now,))
        self._missed[policy, version] = (first, now, why)

    def found(self, policy: str, version: int) -> None:
        self._missed.pop((policy, version), None)

    def alarms(self) -> list[str]:
        now = time.monotonic()
        self._missed = {key: missed for key, missed in self._missed.items() if now - missed[1] < AWAY_SHOWN_S}
        return [
            f"{why}; its slots wait for {now - first:.0f} s, and no failure is counted"
            for _, (first, _, why) in sorted(self._missed.items())
        ]


@dataclass(frozen=True, slots=True)
class Resources:
    """Shared by the episodes of one process. `template` and `pool` belong to the process's own policy."""

    store: Store
    config: SamplerConfig
    worker: str
    template: ChatTemplate
    pool: EnginePool
    tool_servers: Sequence[ToolServer]
    tool_catalog: ToolCatalog
    parser: Parser
    agents: Agents = field(default_factory=Agents)
    tool_traffic: Traffic = field(default_factory=Traffic)
    others: Mapping[str, PolicyClient] = field(default_factory=dict)  # by policy: the others that take turns
    every_version: Mapping[str, EnginePool] = field(
        default_factory=dict
    )  # by policy: all its engines, for pinned actors
    sources: Sequence[Source] = ()  # alternative sources for turns of the process's own policy
    kept_tools: set[str] = field(default_factory=set)  # hashes of the tool lists that this process has stored
    branch_causes: Counter[str] = field(default_factory=Counter)  # requests by `BranchCause`, for the worker's stats
    parent_kinds: Counter[str] = field(default_factory=Counter)  # requests by `ParentKind`, likewise
    model_acts: ModelActs = field(default_factory=ModelActs)
    bugs: Bugs = field(default_factory=Bugs)
    versions_away: VersionsAway = field(default_factory=VersionsAway)
    environments: Environments = field(default_factory=Environments)
    gateway: GatewayServer = field(default_factory=GatewayServer)
    preloaded: PreloadedInterpreter = field(default_factory=PreloadedInterpreter)
    agent_sandbox: AgentSandbox = field(default_factory=AgentSandbox)

    async def keep_tools(self, tools_hash: str, tools: Tools) -> None:
        """Store the tool list that requests name, before the first of them and once per process."""
        if tools_hash and tools_hash not in self.kept_tools:
            await self.store.tool_schemas.keep(ToolSchemas.of(tools))
            if len(self.kept_tools) >= MOST_KEPT_TOOLS:
                self.kept_tools.clear()
            self.kept_tools.add(tools_hash)

    def alarms(self) -> list[str]:
        """What episodes wait for outside of the engines, and what they do too often."""
        return [
            *self.bugs.alarms(),
            *self.model_acts.alarms(),
            *self.tool_traffic.alarms(),
            *self.environments.alarms(),
            *self.versions_away.alarms(),
        ]

    async def close(self) -> None:
        await self.agents.close()
        await self.environments.close()
        await self.gateway.close()
        await self.preloaded.close()
        await self.agent_sandbox.close()

    def policy_client(self, label: str) -> PolicyClient:
        """Of a policy, or of a seat's label (`shared.documents.actors`). Raises ConfigError for one that is not configured."""
        policy, version = weights_of(label)
        client = self._client_of(policy)
        return client if version is None else replace(client, pool=self.every_version[policy], version=version)

    def _client_of(self, policy: str) -> PolicyClient:
        if policy == self.config.policy:
            return PolicyClient(self.template, self.pool)
        if policy not in self.others:
            known = ", ".join([self.config.policy, *self.others])
            raise ConfigError(f"policy {policy!r} is not configured; expected one of: {known} (see other_policies)")
        return self.others[policy]


def shared_resources(store: Store, config: SamplerConfig, worker: str, engines: Engines, agents: Agents) -> Resources:
    own = engines.policy_clients[config.policy]
    return Resources(
        store=store,
        config=config,
        worker=worker,
        template=own.template,
        pool=own.pool,
        others={name: client for name, client in engines.policy_clients.items() if name != config.policy},
        every_version=engines.every_version,
        sources=engines.sources,
        tool_servers=isolated(parse_servers(config.mcp_manager_url), config.tool_user, config.tool_sandbox),
        tool_catalog=ToolCatalog(),
        tool_traffic=Traffic(config.max_opening_sessions, config.max_starting_servers, config.tool_wait_s),
        parser=get_parser(config.tool_call_parser),
        agents=agents,
        environments=Environments(store.environments.live, config),
    )
