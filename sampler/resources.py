"""What the episodes of one sampler process share: the database, engines, tools, agents."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sampler.agents import Agents
from sampler.config import SamplerConfig
from sampler.engine.pool.engine_pool import EnginePool
from sampler.engine.pool.policy_client import PolicyClient
from sampler.engine.pool.turn_sources import Source
from sampler.parsers import Parser
from sampler.rendering.template import ChatTemplate
from sampler.tools import ToolCatalog, ToolServer, Traffic
from shared.documents.tool_schemas import Tools, ToolSchemas
from shared.errors import ConfigError
from shared.store import Store

MOST_KEPT_TOOLS = 10_000  # hashes that are remembered: every task may have a list of its own


@dataclass(frozen=True, slots=True)
class Resources:
    """What the episodes of one process share. `template` and `pool` are those of the process's own policy."""

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
    others: Mapping[str, PolicyClient] = field(default_factory=dict)  # by policy: those that take turns too
    sources: Sequence[Source] = ()  # where turns of the process's own policy may be drawn from instead
    kept_tools: set[str] = field(default_factory=set)  # hashes of lists of tools that this process has stored
    branch_causes: Counter[str] = field(default_factory=Counter)  # requests by `BranchCause`, for the worker's stats

    async def keep_tools(self, tools_hash: str, tools: Tools) -> None:
        """The list that requests name is stored before the first of them, once in the life of the process."""
        if tools_hash and tools_hash not in self.kept_tools:
            await self.store.tool_schemas.keep(ToolSchemas.of(tools))
            if len(self.kept_tools) >= MOST_KEPT_TOOLS:
                self.kept_tools.clear()
            self.kept_tools.add(tools_hash)

    def policy_client(self, policy: str) -> PolicyClient:
        """Raises ConfigError for a policy that takes no part."""
        if policy == self.config.policy:
            return PolicyClient(self.template, self.pool)
        if policy not in self.others:
            known = ", ".join([self.config.policy, *self.others])
            raise ConfigError(f"policy {policy!r} takes no part; those that do: {known} (see other_policies)")
        return self.others[policy]
