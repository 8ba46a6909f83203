"""The service of environments: checks them, listens, registers in its run, serves until SIGTERM, and leaves nothing behind.

workers      kept alive, each with sessions                 beat     its load, for samplers and `tandem status`
reap         sessions that were not renewed                 SIGTERM  it leaves the run, sessions end within drain_s
"""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator

from sampler.core.service.loops import every
from sampler.environments.app import EnvironmentsApp
from sampler.environments.config import EnvironmentsConfig
from sampler.environments.sessions import WorldRules, WorldSessions
from sampler.environments.worker_process import TaskNotOffered, WorkerLost, WorkerProcess, WorldFailed
from shared.configuration.secrets import token_of
from shared.documents.run import EnvironmentService
from shared.errors import ConfigError
from shared.http.listening import listening_socket, reachable
from shared.http.metrics_page import Figure, serving
from shared.http.server import HttpServer
from shared.open_files import allow_many_files
from shared.processes.signals import ending_signals
from shared.store import Store
from shared.store.heartbeats import UNCHANGED_S, HeartbeatTimer

log = logging.getLogger(__name__)

CHECK_S = 120.0  # for one worker to load the package of one environment


def program_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tandem-rl")
    except PackageNotFoundError:
        return ""


async def run_environments(config: EnvironmentsConfig) -> None:
    """Raises ConfigError."""
    token = token_of(config.token, config.token_file, "token_file")
    allow_many_files()  # a connection for each session's request
    await check_kinds(config)
    sessions = WorldSessions(
        WorldRules(
            kinds=config.kinds,
            capacity=config.capacity,
            num_workers=config.num_workers,
            max_starting=config.max_starting,
            wait_s=config.wait_s,
            start_s=config.start_s,
            step_s=config.step_s,
            lease_s=config.lease_s,
            python=str(config.worker_python or ""),
        )
    )
    with listening_socket(config.host, config.port, "host and port") as listener:
        port = listener.getsockname()[1]
        url = (config.url or f"http://{reachable(config.host)}:{port}/api").rstrip("/")
        async with _registered(config, sessions, url) as registration:
            with serving(config.metrics_address, config.run or "", lambda: _figures(sessions)):
                await _serve(config, sessions, listener, EnvironmentsApp(sessions, token), registration)


async def check_kinds(config: EnvironmentsConfig) -> None:
    """Let one worker load every environment. Raises ConfigError."""
    worker = await WorkerProcess.started(str(config.worker_python or ""), config.kinds)
    try:
        for kind, provider in config.kinds.items():
            try:
                await worker.ask({"op": "indices", "kind": kind}, CHECK_S)
            except (WorldFailed, WorkerLost, TaskNotOffered) as exc:
                python = config.worker_python or sys.executable
                raise ConfigError(
                    f"environments: {provider} cannot be loaded by {python}: {exc}; expected its package installed there "
                    "(worker_python names another Python)"
                ) from exc
    finally:
        await worker.end()


def _figures(sessions: WorldSessions) -> Iterator[Figure]:
    counts = {"running": len(sessions), "starting": sessions.starting, "capacity": sessions.rules.capacity}
    yield from (Figure(f"environments_{name}", value) for name, value in counts.items())


class Registration:
    """The service's document in its run. Without a run, nothing."""

    def __init__(self, store: Store | None, sessions: WorldSessions, url: str, heartbeat_s: float) -> None:
        self.url = url
        self._store, self._sessions, self._heartbeat_s = store, sessions, heartbeat_s
        self._timer = HeartbeatTimer()

    async def beat(self) -> None:
        sessions = self._sessions
        if self._store is None or sessions.is_draining:
            return
        service = EnvironmentService(
            id=self.url,
            url=self.url,
            kinds=list(sessions.rules.kinds),
            capacity=sessions.rules.capacity,
            running=len(sessions),
            starting=sessions.starting,
            version=program_version(),
            host=socket.gethostname(),
            pid=os.getpid(),
            heartbeat_s=self._heartbeat_s,
        )
        if not self._timer.is_due(service, 0.0 if service.running + service.starting else UNCHANGED_S):
            return
        is_its = await self._store.environments.heartbeat(service)
        self._timer.written(service)
        if not is_its:
            raise ConfigError(
                f"url is {self.url}, which a service of another machine has registered in this run: it names this machine alone; "
                f"expected an address that samplers elsewhere reach, such as --host 0.0.0.0 or --url http://{socket.gethostname()}:PORT/api"
            )

    async def leave(self) -> None:
        if self._store is not None:
            await self._store.environments.remove(self.url, socket.gethostname())


@contextlib.asynccontextmanager
async def _registered(config: EnvironmentsConfig, sessions: WorldSessions, url: str) -> AsyncIterator[Registration]:
    if config.run is None or config.db_connection_string is None:
        yield Registration(None, sessions, url, config.heartbeat_s)
        return
    async with Store.open(config.db_connection_string, config.run) as store:
        await store.settings.keep("environments", config.snapshot(), url)
        yield Registration(store, sessions, url, config.heartbeat_s)


async def _serve(
    config: EnvironmentsConfig,
    sessions: WorldSessions,
    listener: socket.socket,
    app: EnvironmentsApp,
    registration: Registration,
) -> None:
    server = HttpServer(app, log_config=None)
    stop = asyncio.Event()
    for number in ending_signals():
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with asyncio.TaskGroup() as group:
        workers = group.create_task(sessions.keep_workers(), name="workers")
        serving = group.create_task(server.serve([listener]), name="server")
        reaping = group.create_task(sessions.reap(), name="reap")
        await sessions.ready()
        await registration.beat()
        beating = group.create_task(every(registration.beat, config.heartbeat_s), name="beat")
        log.info("serving %s at %s workers=%d", ", ".join(config.kinds), registration.url, config.num_workers)
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        await stop.wait()
        log.info("draining sessions=%d drain_s=%g", len(sessions), config.drain_s)
        sessions.is_draining = True
        beating.cancel()
        await registration.leave()
        await sessions.drain(config.drain_s)
        server.should_exit = True
        await serving
        reaping.cancel()
        workers.cancel()
