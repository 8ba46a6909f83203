"""Checks once, with one session, whether the tool servers offer the tools that tasks name, before each episode fails on it.

A list may still grow (a manager's servers start one after the other): a sampler's start only logs, and episodes retry.
"""

import logging
from collections.abc import Sequence

from sampler.core.episode.resources import Resources
from sampler.core.episode.tools import tool_limits
from sampler.core.errors import ToolFailure
from sampler.core.settings.core_config import CoreConfig
from sampler.core.tools import ToolCatalog, ToolServer, ToolSession, Traffic
from shared.errors import ConfigError
from shared.store.questions import TaskDemand

log = logging.getLogger(__name__)


async def log_missing_tools(resources: Resources, demands: Sequence[TaskDemand]) -> None:
    """Log tools that open tasks name and no server offers. A server that does not answer is reported by its traffic instead."""
    try:
        problems = await missing_tools(
            resources.config, resources.tool_servers, demands, resources.tool_catalog, resources.tool_traffic
        )
    except ToolFailure as exc:
        log.info("tools of the open tasks were not checked: %s", exc)
        return
    for text, num_tasks in problems.items():
        log.error("%d open tasks: %s", num_tasks, text)


async def missing_tools(
    config: CoreConfig,
    servers: Sequence[ToolServer],
    demands: Sequence[TaskDemand],
    catalog: ToolCatalog | None = None,
    traffic: Traffic | None = None,
) -> dict[str, int]:
    """{problem: number of tasks}. Raises ToolFailure."""
    naming = [one for one in demands if one.tools or one.exclude_tools or config.prompt.exclude_tools]
    problems: dict[str, int] = {}
    if not servers or not naming:
        return problems
    async with ToolSession(servers, None, tool_limits(config), catalog, traffic) as session:
        for one in naming:
            try:
                session.require(one.tools, [*config.prompt.exclude_tools, *one.exclude_tools])
            except ConfigError as exc:
                problems[str(exc)] = problems.get(str(exc), 0) + one.num_tasks
    return problems
