"""The gateway's tool servers: read from the mcpServers JSON, and how each is started for one session."""

import secrets
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sampler.mcp_docker.config import McpDockerConfig
from sampler.mcp_docker.links.channel import RemoteChannel, ServerChannel, StdioChannel
from sampler.mcp_docker.links.modern_link import ModernLink
from sampler.mcp_docker.links.server_link import ServerLink
from sampler.mcp_docker.starting.tool_set import MakeLinks
from sampler.mcp_docker.tools.forked import bundled_module
from shared.errors import ConfigError
from shared.forks.processes import ForkServer
from shared.mcp.limits import TransportLimits
from shared.mcp.servers import ToolServer, parse_servers
from shared.sandbox import IsolationLevel, Launch

MB = 1024 * 1024
_EPISODE_BYTES = 24
_CLOSE_S = 5.0  # for a remote server's DELETE


def read_servers(config: McpDockerConfig) -> list[ToolServer]:
    """Raises ConfigError, which names the file and the field."""
    servers = parse_servers(config.servers)
    if not servers:
        raise ConfigError(f'{config.servers}: has no servers; expected {{"mcpServers": {{NAME: {{"command": …}}}}}}')
    for server in servers:
        if server.transport == "mcpapi":
            raise ConfigError(
                f"{config.servers}: server {server.name!r}: mcpapi is not MCP; expected a streamable-HTTP URL"
            )
        if server.shared:
            raise ConfigError(
                f"{config.servers}: server {server.name!r}: shared is true; here every session has processes of its own"
            )
        if server.command is not None and shutil.which(server.command) is None:
            raise ConfigError(
                f"{config.servers}: server {server.name!r}: command is {server.command!r}, which is not on the PATH"
            )
    names = {server.name for server in servers}
    unknown = sorted(set(config.network_servers) - names)
    if unknown:
        raise ConfigError(
            f"network_servers: {unknown[0]!r} is no server of {config.servers}; expected {', '.join(names)}"
        )
    return servers


def forked_modules(servers: Sequence[ToolServer], level: IsolationLevel) -> list[str]:
    """Of bundled tools: they are forked where nothing but the kernel confines them."""
    if level is not IsolationLevel.PROCESS:
        return []
    commands = [(server.command or "", *server.args) for server in servers if server.cwd is None]
    return sorted({module for command in commands if (module := bundled_module(command)) is not None})


def links_of(
    servers: Sequence[ToolServer], config: McpDockerConfig, level: IsolationLevel, forks: ForkServer | None
) -> MakeLinks:
    """A function that makes the links of one set, whose processes work in its folder."""
    limits = TransportLimits(
        open_s=config.start_s,
        max_call_s=config.call_s,
        close_s=_CLOSE_S,
        max_message_bytes=config.max_message_mb * MB,
        max_parallel_calls=config.max_parallel_calls,
    )

    def channel_of(server: ToolServer, folder: Path) -> ServerChannel:
        if server.url is not None:
            return RemoteChannel(server, limits)
        return StdioChannel(_launch(server, folder, config), level, config.max_message_mb * MB, forks)

    def link_of(server: ToolServer, folder: Path) -> ServerLink:
        if server.revision != "2026-07-28":
            return ServerLink(server.name, channel_of(server, folder))
        episode = secrets.token_urlsafe(_EPISODE_BYTES)  # a server without sessions knows the requests of one set by it
        return ModernLink(server.name, channel_of(replace(server, episode=episode), folder), episode)

    return lambda folder: [link_of(server, folder) for server in servers]


def _launch(server: ToolServer, folder: Path, config: McpDockerConfig) -> Launch:
    command = (server.command or "", *server.args)
    readable = list(config.readable)
    if server.cwd is not None:
        command = ("/bin/sh", "-c", 'cd "$0" && exec "$@"', server.cwd, *command)
        readable.append(Path(server.cwd))
    return Launch(
        command=command,
        folder=folder,
        environment=dict(server.env),
        limits=config.sandbox_limits,
        network=server.name in config.network_servers,
        readable=tuple(readable),
        container=config.container_options,
    )
