"""Resources that the episodes of one sampler process share: database, engines, tools, agents."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from sampler.core.api_models import Agents
from sampler.core.engines.pool.engine_pool import EnginePool
from sampler.core.engines.pool.engines import Engines
from sampler.core.engines.pool.policy_client import PolicyClient
from sampler.core.engines.pool.turn_sources import Source
from sampler.core.episode.images import ImageFiles
from sampler.core.episode.model_acts import ModelActs
from sampler.core.parsers import Parser, get_parser
from sampler.core.rendering.template import ChatTemplate
from sampler.core.settings.core_config import CoreConfig
from sampler.core.tenant import OpenTenants, open_tenants
from sampler.core.tools import ToolCatalog, ToolServer, Traffic, parse_servers
from sampler.core.tools.isolation import isolated
from shared.documents.actors import weights_of
from shared.documents.tool_schemas import Tools, ToolSchemas
from shared.errors import ConfigError
from shared.store import Store
from shared.unforeseen import Bugs

MOST_KEPT_TOOLS = 10_000  # bound on remembered hashes: every task may have its own list


@dataclass(frozen=True)
class Resources:
    """Shared by the episodes of one process. `template` and `pool` belong to the process's own policy."""

    store: Store
    config: CoreConfig
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
    stored_lists: set[str] = field(default_factory=set)  # hashes of the tool lists that this process has stored
    branch_causes: Counter[str] = field(default_factory=Counter)  # requests by `BranchCause`, for the worker's stats
    parent_kinds: Counter[str] = field(default_factory=Counter)  # requests by `ParentKind`, likewise
    model_acts: ModelActs = field(default_factory=ModelActs)
    bugs: Bugs = field(default_factory=Bugs)
    opened: OpenTenants = field(default_factory=OpenTenants)

    @cached_property
    def images(self) -> ImageFiles:
        """Made by the first image."""
        return ImageFiles(self.store)

    async def store_tool_list(self, tools_hash: str, tools: Tools) -> None:
        """Store the tool list that requests name, before the first of them and once per process."""
        if tools_hash and tools_hash not in self.stored_lists:
            await self.store.tool_schemas.keep(ToolSchemas.of(tools))
            if len(self.stored_lists) >= MOST_KEPT_TOOLS:
                self.stored_lists.clear()
            self.stored_lists.add(tools_hash)

    def alarms(self) -> list[str]:
        """What episodes wait for outside of the engines, and what they do too often."""
        return [
            *self.bugs.alarms(),
            *self.model_acts.alarms(),
            *self.tool_traffic.alarms(),
            *self.opened.alarms(),
        ]

    async def close(self) -> None:
        await self.agents.close()
        await self.opened.close()

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


def shared_resources(store: Store, config: CoreConfig, worker: str, engines: Engines, agents: Agents) -> Resources:
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
        tool_servers=isolated(
            parse_servers(config.tools.mcp_manager_url), config.tools.tool_user, config.tools.tool_sandbox
        ),
        tool_catalog=ToolCatalog(),
        tool_traffic=Traffic(
            config.tools.max_opening_sessions, config.tools.max_starting_servers, config.tools.tool_wait_s
        ),
        parser=get_parser(config.prompt.tool_call_parser),
        agents=agents,
        opened=open_tenants(store, config),
    )
