"""Starts the gateway, serves until SIGTERM or Ctrl-C, and leaves nothing behind."""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from dataclasses import astuple
from pathlib import Path

from sampler.mcp_docker.config import McpDockerConfig
from sampler.mcp_docker.requests.app import GatewayApp
from sampler.mcp_docker.requests.endpoint import McpEndpoint
from sampler.mcp_docker.requests.older_api import OlderApi
from sampler.mcp_docker.servers import MB, forked_modules, links_of, read_servers
from sampler.mcp_docker.sessions.sessions import SessionRules, Sessions
from sampler.mcp_docker.starting.pool import SetPool
from sampler.mcp_docker.tools.forked import loaded_tools
from shared.configuration.secrets import token_of
from shared.files.private_folder import private_folder, temporary_folder
from shared.forks.processes import ForkServer
from shared.http.connections import ConnectionLimits
from shared.http.listening import in_url, listening_socket
from shared.http.server import HttpServer
from shared.names import is_loopback_host
from shared.open_files import allow_many_files
from shared.processes.signals import ending_signals
from shared.sandbox import IsolationLevel, chosen_level, reap_left_over

log = logging.getLogger(__name__)


async def run_gateway(config: McpDockerConfig) -> None:
    """Raises ConfigError."""
    servers = read_servers(config)
    level = chosen_level(None if config.isolation is None else IsolationLevel(config.isolation))
    token = token_of(config.token, config.token_file, "token_file")
    allow_many_files()  # a session takes five to ten
    listener = listening_socket(config.host, config.port, "host and port")
    port = listener.getsockname()[1]
    with contextlib.closing(listener):
        folder = _state_folder(config, port)
        stale = await reap_left_over(folder)
        if any(astuple(stale)):
            log.warning("removed what an earlier gateway left behind: %s", stale)
        modules = forked_modules(servers, level)
        forks = ForkServer(loaded_tools(modules), folder, config.readable) if modules else None
        if forks is not None:
            await forks.open()
        sessions = _sessions(
            config,
            SetPool(
                links_of(servers, config, level, forks),
                folder,
                warm=config.warm_sessions,
                capacity=config.max_sessions,
                max_starting=config.max_starting or 2 * (os.cpu_count() or 1),
                start_s=config.start_s,
                wait_s=config.wait_s,
            ),
        )
        endpoint = McpEndpoint(sessions, config.max_message_mb * MB)
        is_local = is_loopback_host(config.host)
        app = GatewayApp(
            endpoint,
            OlderApi(sessions, config.max_message_mb * MB),
            sessions,
            level,
            token=token,
            origins=config.allowed_origins,
            is_local=is_local,
        )
        sessions.pool.begin()
        sessions.begin()
        names = ", ".join(server.name for server in servers)
        log.info("serving %s at http://%s:%d/mcp isolation=%s", names, in_url(config.host), port, level)
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        await _serve(app, sessions, listener, config)
        if forks is not None:
            await forks.close()


async def _serve(app: GatewayApp, sessions: Sessions, listener: socket.socket, config: McpDockerConfig) -> None:
    """Until a signal; then no new sessions, calls in flight end, all sets are ended."""
    server = HttpServer(
        app,
        ConnectionLimits(config.max_connections, config.max_connections_per_address),
        log_level="warning",
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=5,
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in ending_signals():
        loop.add_signal_handler(number, stop.set)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    app.is_draining = True
    log.info("draining: %d sessions, calls in flight have %g s", len(sessions), config.drain_s)
    await sessions.close(config.drain_s)
    server.should_exit = True
    await serving


def _sessions(config: McpDockerConfig, pool: SetPool) -> Sessions:
    rules = SessionRules(
        config.lease_s, config.broken_s, config.call_s, config.max_parallel_calls, config.max_calls_per_s
    )
    return Sessions(pool, rules)


def _state_folder(config: McpDockerConfig, port: int) -> Path:
    if config.state_folder is None:
        return temporary_folder("mcp-docker", str(port))
    config.state_folder.parent.mkdir(parents=True, exist_ok=True)
    return private_folder(config.state_folder.absolute())
