"""Resources that the episodes of one sampler process share: database, engines, tools, agents."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sampler.agents import Agents
from sampler.config import SamplerConfig
from sampler.engine.pool.engine_pool import EnginePool
from sampler.engine.pool.engines import Engines
from sampler.engine.pool.policy_client import PolicyClient
from sampler.engine.pool.turn_sources import Source
from sampler.gateway.agent_sandbox import AgentSandbox
from sampler.gateway.preload.interpreters import PreloadedInterpreter
from sampler.gateway.server import GatewayServer
from sampler.parsers import Parser, get_parser
from sampler.rendering.template import ChatTemplate
from sampler.tools import ToolCatalog, ToolServer, Traffic, parse_servers
from sampler.tools.isolation import isolated
from shared.documents.tool_schemas import Tools, ToolSchemas
from shared.errors import ConfigError
from shared.store import Store

MOST_KEPT_TOOLS = 10_000  # bound on remembered hashes: every task may have its own list


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
    sources: Sequence[Source] = ()  # alternative sources for turns of the process's own policy
    kept_tools: set[str] = field(default_factory=set)  # hashes of the tool lists that this process has stored
    branch_causes: Counter[str] = field(default_factory=Counter)  # requests by `BranchCause`, for the worker's stats
    parent_kinds: Counter[str] = field(default_factory=Counter)  # requests by `ParentKind`, likewise
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

    def policy_client(self, policy: str) -> PolicyClient:
        """Raises ConfigError for a policy that is not configured."""
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
        sources=engines.sources,
        tool_servers=isolated(parse_servers(config.mcp_manager_url), config.tool_user, config.tool_sandbox),
        tool_catalog=ToolCatalog(),
        tool_traffic=Traffic(config.max_opening_sessions, config.max_starting_servers, config.tool_wait_s),
        parser=get_parser(config.tool_call_parser),
        agents=agents,
    )
