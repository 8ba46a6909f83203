"""Starts the services of a run: engines and a trainer per policy, shared samplers and tools.

Services without a given URL are started. Each child's log is logs/RUN_PART.log.
"""

import contextlib
import re
import socket
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from tandem.launch import commands
from tandem.launch.children import Child, Children, Program, Starter
from tandem.launch.engine_size import engine_size
from tandem.launch.placement import EnginePlace
from tandem.launch.settings import BUNDLED, LaunchConfig
from tandem.launch.threads import engine_threads, trainer_threads
from tandem.launch.waiting import until

ENVIRONMENTS_SERVED = re.compile(r"\b(serving .+ at http\S+) workers=", re.MULTILINE)
TOOLS_URL = re.compile(r"^tools at (\S+)$", re.MULTILINE)


async def start_tools(config: LaunchConfig, children: Children) -> str | None:
    """Start the tools of this machine's samplers and wait until they answer; returns their URL, or None without tools."""
    if config.tools != BUNDLED or not config.num_samplers:
        return None if config.tools == BUNDLED else config.tools
    child = start_bundled_tools(config, children)
    url: str = await until(config, "the tool server's URL", "it is starting", lambda: _tools_url(child))
    await until(config, f"the tool server at {url}", "it does not answer yet", lambda: _listens(url))
    return url


def start_bundled_tools(config: LaunchConfig, children: Starter) -> Child:
    """They listen on this machine only, where its samplers are."""
    log_path = config.log_path("tools" if config.machines.is_alone else f"tools_{config.machines.node}")
    return children.start(Program("tools", "tools", commands.tools(), log_path, commands.environment()))


async def start_environments(config: LaunchConfig, children: Children, database: str) -> str | None:
    """Start the service of environments and wait until it serves; returns what it says, or None where there is none."""
    child = start_environment_service(config, children, database)
    if child is None:
        return None
    url: str = await until(config, "the environments", "a worker loads each once", lambda: _served_environments(child))
    return url


def start_environment_service(config: LaunchConfig, children: Starter, database: str) -> Child | None:
    """For the samplers of this machine, at a loopback address unless its settings name another."""
    if not config.environment_flags():
        return None
    log_path = config.log_path("environments" if config.machines.is_alone else f"environments_{config.machines.node}")
    environment = commands.with_database("environments", database)
    return children.start(Program("environments", "environments", commands.environments(config), log_path, environment))


def _served_environments(child: Child) -> str | None:
    match = ENVIRONMENTS_SERVED.search(child.log_text())
    return match[1] if match else None


def _tools_url(child: Child) -> str | None:
    match = TOOLS_URL.search(child.log_text())
    return match[1] if match else None


def _listens(url: str) -> bool:
    parts = urlsplit(url)
    with contextlib.suppress(OSError), socket.create_connection((parts.hostname or "", parts.port or 80), timeout=1.0):
        return True
    return False


def start_keepers(policies: Sequence[LaunchConfig], children: Starter, database: str) -> None:
    threads = engine_threads(policies)
    for config in policies:
        size = engine_size(policies, config)
        flags = size.flags if size else []
        for number, url, place, kind in _engines(config):
            part = config.part("engine", number)
            command = commands.keeper(config, url, place, flags, kind)
            environment = commands.with_database("keeper", database) | threads
            if place is not None:
                environment |= commands.on_gpus(config, place.gpus)
            children.start(Program(_spoken(part), "keeper", command, config.log_path(part), environment))
        for version in config.serve_versions * config.starts_engine:
            part = config.part("engine", f"at_{version}")
            environment = commands.with_database("keeper", database) | threads
            command = [*commands.keeper(config, None, size=flags), "--serve_version", str(version)]
            children.start(Program(_spoken(part), "keeper", command, config.log_path(part), environment))


def memory_lines(policies: Sequence[LaunchConfig]) -> list[str]:
    """What the local engines of this machine will take of its memory, for people. Raises ConfigError."""
    sizes = [engine_size(policies, config) for config in policies]
    return [line for size in sizes if size for line in size.lines()]


def _engines(config: LaunchConfig) -> list[tuple[str, str | None, EnginePlace | None, str | None]]:
    """Number in names, URL if it runs already, GPUs if it is placed, kind if there is a choice."""
    if config.engine_urls:
        return [(_number(config, i), url, None, None) for i, url in enumerate(config.engine_urls)]
    if config.placed and (engines := config.placed.placement.engines):
        alone = len(engines) == 1
        return [
            (config.machines.node if alone else f"{config.machines.node}-{i}", None, place, None)
            for i, place in enumerate(engines)
        ]
    if not config.starts_engine:
        return []
    alone = len(config.kinds) == 1
    return [(config.machines.node if alone else f"{config.machines.node}-{k}", None, None, k) for k in config.kinds]


def start_samplers(policies: Sequence[LaunchConfig], children: Starter, database: str, tools_url: str | None) -> None:
    config = policies[0]
    first = config.machines.machine_rank * config.num_samplers
    for i in range(first, first + config.num_samplers):
        command, environment = commands.sampler(policies, tools_url), commands.with_database("sampler", database)
        number = _number(config, i)
        log_path = config.log_path(f"sample_{number}")
        children.start(Program(f"sampler {number}", "sampler", command, log_path, environment))


def _number(config: LaunchConfig, i: int) -> str:
    """A number in names of processes and logs, which is unique among the run's machines."""
    return f"{config.machines.node}-{i}" if config.machines.join else str(i)


def start_trainers(
    policies: Sequence[LaunchConfig], children: Starter, database: str, only: Collection[str] | None = None
) -> dict[str, Child]:
    """Start the trainers; returns {policy: its trainer} without frozen policies; {} on a machine that joins.

    `only`: those of these policies; None: of all.
    """
    trainers, threads = {}, trainer_threads(policies)
    for config in (config for config in policies if config.trains and (only is None or config.policy in only)):
        command = commands.trainer(config)
        environment = commands.trainer_environment(config, database) | threads
        if config.placed:
            environment |= commands.on_gpus(config, config.placed.placement.trainer)
        name = _spoken(config.part("trainer", config.machines.machine_rank))
        log_path = config.log_path(config.part("train", config.machines.machine_rank))
        child = children.start(Program(name, "trainer", command, log_path, environment, ends_itself=True))
        trainers[config.policy] = child
    return trainers


def _spoken(part: str) -> str:
    return part.replace("_", " ")
