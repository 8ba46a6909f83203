"""Runs agents' commands in the sandbox of MCP-Docker (`agent_isolation`).

    TEMPORARY/tandem-UID/agents/N        a sampler's state folder; N: the first that no living sampler uses
    TEMPORARY/tandem-UID/agents/N/NAME   an attempt's folder: the only one in which its command may write

Its output is written outside of it, and what it left there is copied out when all its processes have ended.
"""

import asyncio
import logging
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import astuple
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sampler.core.errors import CommandNotStarted
from sampler.core.tenant import TenantState
from sampler.gateway import relay
from sampler.gateway.config import AgentPlayConfig
from sampler.gateway.kept_files import copy_out
from sampler.gateway.relay import relayed
from sampler.gateway.workplace import RunningCommand, Uncounted, Workplace
from shared.errors import ConfigError
from shared.files.private_folder import make_private_folder, temporary_folder
from shared.sandbox.launch import ContainerOptions, IsolationLevel, SandboxLaunch, SandboxLimits

if TYPE_CHECKING:
    from shared.sandbox import SandboxedProcess

log = logging.getLogger(__name__)

_MORE_S = 60.0  # than an episode may take: its time-out ends the command before this does
_VENV = "pyvenv.cfg"
_CONTAINER_KILLED = 128 + signal.SIGKILL  # the engine counts why, and forgets it with the container
_LAST_WORDS_CHARS = 400
PERHAPS = "perhaps"  # how a limit begins that is not known to have ended the command
_REFUSALS = {  # what programs say when a limit of the kernel refuses them something
    "MemoryError": "memory_mb",
    "Cannot allocate memory": "memory_mb",
    "bad_alloc": "memory_mb",
    "out of memory": "memory_mb",
    "can't start new thread": "processes",
    "Resource temporarily unavailable": "processes",
    "Too many open files": "open_files",
    "File too large": "file_mb",
}


class AgentSandbox(TenantState):
    """One per sampler process, whose commands are all alike. TenantState at the sampler's start."""

    def __init__(self, config: AgentPlayConfig) -> None:
        self._config = config
        self._opening = asyncio.Lock()
        self._state: Path | None = None
        self._level, self._has_own_network = IsolationLevel.PROCESS, False
        self._limits, self._container = SandboxLimits(), ContainerOptions()
        self._readable: list[Path] = []

    async def begin(self) -> None:
        if self._config.agents.isolation is not None:
            await self.open()

    async def open(self) -> None:
        """Raises ConfigError if the level does not work on this machine. Removes what killed samplers left."""
        async with self._opening:
            if self._state is not None:
                return
            config = self._config.agents.isolation
            assert config is not None, "checked by whoever opens it"
            self._level = IsolationLevel(config.agent_isolation)
            self._limits = SandboxLimits(
                **config.agent_limits.model_dump(), lifetime_s=self._config.queue.episode_timeout_s + _MORE_S
            )
            self._container = ContainerOptions(**config.agent_container.model_dump(), network="host")
            self._has_own_network = config.agent_network == "gateway"
            self._readable = [path.absolute() for path in config.agent_readable]
            missing = [path for path in self._readable if not path.exists()]
            if missing:
                raise ConfigError(f"agent_readable: {missing[0]} does not exist; expected files and folders")
            self._state = await self._opened()

    async def _opened(self) -> Path:
        from shared.sandbox.folders import own_state_folder
        from shared.sandbox.levels import chosen_level
        from shared.sandbox.users import users

        await asyncio.to_thread(chosen_level, self._level, "agent_isolation")
        if os.geteuid() == 0:
            users()  # raises ConfigError if too many gateways have taken some
        state, stale = await own_state_folder(temporary_folder("agents"))
        if any(astuple(stale)):
            log.warning("removed what agents of an earlier sampler left behind: %s", stale)
        log.info("agent_command is isolated level=%s folder=%s", self._level, state)
        return state

    async def close(self) -> None:
        from shared.sandbox.folders import release_state_folder

        async with self._opening:
            if self._state is not None:
                release_state_folder(self._state)
                self._state = None

    @asynccontextmanager
    async def workplace(
        self, target: Path | None, command: Sequence[str], url: str, uncounted: Uncounted = nullcontext
    ) -> AsyncIterator[Workplace]:
        """`target`: where to keep its files. `command`: its words in the settings; the files that they name may be read.
        `url`: the gateway's. `uncounted`: around copying.
        """
        from shared.sandbox.folders import new_folder

        assert self._state is not None, "opened"
        try:
            outputs, folder = _made(target), new_folder(self._state)
        except OSError as exc:
            raise CommandNotStarted(f"no folder can be made for agent_command: {exc}") from exc
        started: list[SandboxedProcess] = []
        address = urlsplit(url)
        host, port = str(address.hostname), int(address.port or 0)
        try:

            async def start(words: Sequence[str], variables: Mapping[str, str]) -> RunningCommand:
                started.append(await self._started(folder, words, variables, command, (host, port)))
                return self._running(started[-1])

            status = folder.stat()
            owner = status.st_uid, status.st_gid
            async with AsyncExitStack() as stack:
                if self._has_own_network:
                    try:
                        await stack.enter_async_context(relayed(str(folder), host, port, owner))
                    except OSError as exc:
                        raise CommandNotStarted(f"agent_command cannot be given a way to the gateway: {exc}") from exc
                yield Workplace(folder, outputs, owner, start)
        finally:
            await asyncio.shield(_leave(folder, target, started, uncounted))

    async def _started(
        self,
        folder: Path,
        words: Sequence[str],
        variables: Mapping[str, str],
        command: Sequence[str],
        gateway: tuple[str, int],
    ) -> "SandboxedProcess":
        from shared.sandbox.processes import start

        readable, environment = [*self._readable], dict(variables)
        if self._level is not IsolationLevel.CONTAINER:  # whose image has its programs
            environment["PATH"] = os.environ.get("PATH", os.defpath)
            program = shutil.which(words[0])
            if program is None:
                raise ConfigError(f"agent_command: {words[0]} is not a program on the PATH; expected its whole path")
            words = [program, *words[1:]]
            readable += files_named_in((program, *command[1:]))
        if self._has_own_network:
            words = [sys.executable, "-I", "-S", relay.__file__, *map(str, gateway), relay.NAME, *words]
        launch = SandboxLaunch(
            command=tuple(words),
            folder=folder,
            environment=environment,
            limits=self._limits,
            network=not self._has_own_network,
            readable=tuple(readable),
            container=self._container,
        )
        return await start(launch, self._level, streams_stderr=True)

    def _running(self, process: "SandboxedProcess") -> RunningCommand:
        assert process.stderr_pipe is not None

        def exceeded(status: int, stderr: str) -> str:
            return process.exceeded or (self._perhaps(status, stderr) if status else "")

        return RunningCommand(process.stdin, process.stdout, process.stderr_pipe, process.wait, process.stop, exceeded)

    def _perhaps(self, status: int, stderr: str) -> str:
        """The limit at which the kernel refused something to the command, as its end and its last words let one think."""
        last = stderr[-_LAST_WORDS_CHARS:]
        name = next((limit for words, limit in _REFUSALS.items() if words in last), None)
        if self._level is IsolationLevel.CONTAINER and status == _CONTAINER_KILLED:
            name = "memory_mb"
        return "" if name is None else f"{PERHAPS} {name}, which is {getattr(self._limits, name)}"


def _made(target: Path | None) -> Path | None:
    if target is not None:
        make_private_folder(target)
    return target


async def _leave(
    folder: Path, target: Path | None, started: Sequence["SandboxedProcess"], uncounted: Uncounted
) -> None:
    from shared.sandbox.folders import discard

    try:
        for process in started:  # again: a second cancellation does not wait for the first one's end
            await process.stop()
        if target is not None:
            async with uncounted():
                await asyncio.to_thread(copy_out, folder, target)
    finally:
        await discard(folder)


@cache
def files_named_in(command: tuple[str, ...]) -> list[Path]:
    """What the command's own words name by whole paths: programs, scripts, and the virtual environments of Pythons."""
    files = []
    for word in filter(os.path.isabs, command):
        path = Path(word)
        if not path.is_file():
            continue
        files.append(path)
        environment = path.parent.parent
        if (environment / _VENV).is_file():
            files += [environment, *(each for each in _base_of(environment) if each.exists())]
    return files


def _base_of(environment: Path) -> list[Path]:
    """The Python of a virtual environment, and its library; not the folder that holds them, which may be a home."""
    program = (environment / "bin" / "python").resolve()
    return [program, program.parent.parent / "lib"]
