"""Starts the services of a run: engines and a trainer per policy, shared samplers and tools.

Services without a given URL are started. Each child's log is logs/RUN_PART.log.
"""

import contextlib
import re
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from scripts.launch import commands
from scripts.launch.children import Child, Children
from scripts.launch.settings import BUNDLED, LaunchConfig
from scripts.launch.waiting import until

TOOLS_URL = re.compile(r"^tools at (\S+)$", re.MULTILINE)


async def start_tools(config: LaunchConfig, children: Children) -> str | None:
    """Start the tools and wait until they answer; returns their URL, or None without tools."""
    if config.tools != BUNDLED:
        return config.tools
    log_path = config.log_path("tools" + (f"_{config.machine_rank}" if config.num_machines > 1 else ""))
    child = children.start("tools", "tools", commands.tools(), log_path, commands.environment())
    url: str = await until(config, "the tool server to print its URL", lambda: _tools_url(child))
    await until(config, f"{url} to answer", lambda: _listens(url))
    return url


def _tools_url(child: Child) -> str | None:
    found = TOOLS_URL.search(child.log_text())
    return found[1] if found else None


def _listens(url: str) -> bool:
    parts = urlsplit(url)
    with contextlib.suppress(OSError), socket.create_connection((parts.hostname or "", parts.port or 80), timeout=1.0):
        return True
    return False


def start_keepers(policies: Sequence[LaunchConfig], children: Children, database: str) -> None:
    for config in policies:
        for i, url in enumerate(config.engine_urls or [None]):
            part = config.part("engine", i if config.engine_urls else config.machine_rank)
            command, environment = commands.keeper(config, url), commands.with_database("keeper", database)
            children.start(_spoken(part), "keeper", command, config.log_path(part), environment)


def start_samplers(policies: Sequence[LaunchConfig], children: Children, database: str, tools_url: str | None) -> None:
    config = policies[0]
    first = config.machine_rank * config.num_samplers
    for i in range(first, first + config.num_samplers):
        command, environment = commands.sampler(policies, tools_url), commands.with_database("sampler", database)
        children.start(f"sampler {i}", "sampler", command, config.log_path(f"sample_{i}"), environment)


def start_trainers(policies: Sequence[LaunchConfig], children: Children, database: str) -> dict[str, Child]:
    """Start the trainers; returns {policy: its trainer} without frozen policies."""
    trainers = {}
    for config in (config for config in policies if not config.frozen):
        command, environment = commands.trainer(config), commands.trainer_environment(config, database)
        name = _spoken(config.part("trainer", config.machine_rank))
        log_path = config.log_path(config.part("train", config.machine_rank))
        child = children.start(name, "trainer", command, log_path, environment, ends_itself=True)
        trainers[config.policy] = child
    return trainers


def _spoken(part: str) -> str:
    return part.replace("_", " ")
