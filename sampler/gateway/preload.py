"""Keeps, for one sampler process, the interpreter that has an agent's packages loaded (`agent_preload`).

It is started for the first episode, again if it was killed, and ends with the sampler, however that ends. The folder of a sampler
that was killed is removed by the next one.
"""

import asyncio
import contextlib
import logging
import os
import pwd
import shutil
from asyncio.subprocess import Process
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sampler.core.tenant import TenantState
from sampler.core.tools.isolation import wrapped
from shared.errors import ConfigError
from shared.forks import client as fork_client
from shared.forks import server as fork_server
from shared.processes import guard
from shared.processes.guarded import ChildCommand, GuardedProcess, end_process, start_process
from shared.processes.temporary import TemporaryFolder

log = logging.getLogger(__name__)

LOADING_S = 300.0
_LINES = 20  # kept of its stderr
_FILES = tuple(Path(module.__file__ or "") for module in (fork_server, fork_client, guard))
_EXPECTED = "agent_preload needs an agent_command of the form: [env NAME=VALUE …] PYTHON SCRIPT|-m MODULE …"


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """`before`: `env` and its variables. `arguments`: the script, or -m and the module, and what follows."""

    before: tuple[str, ...]
    python: str
    arguments: tuple[str, ...]

    @property
    def folder(self) -> str:
        return "" if self.arguments[0] == "-m" else os.path.dirname(os.path.realpath(self.arguments[0]))


def python_command(words: Sequence[str]) -> PythonCommand:
    """Raises ConfigError for any other command."""
    at = 0
    if Path(words[0]).name == "env":
        at = 1
        while at < len(words) and "=" in words[at] and not words[at].startswith("-"):
            at += 1
    python, arguments = words[at : at + 1], tuple(words[at + 1 :])
    if not python or not Path(python[0]).name.startswith("python"):
        raise ConfigError(f"{_EXPECTED}; found {' '.join(words[: at + 1])!r} where PYTHON is expected")
    first = arguments[0] if arguments else ""
    if not first or (first.startswith("-") and (first != "-m" or len(arguments) < 2)):
        raise ConfigError(f"{_EXPECTED}; found {first!r} behind {python[0]}")
    return PythonCommand(tuple(words[:at]), python[0], arguments)


class PreloadedInterpreter(TenantState):
    """One per sampler process: all its episodes have the same command."""

    def __init__(self) -> None:
        self._starting = asyncio.Lock()
        self._server: GuardedProcess | None = None  # its guard
        self._pid = 0
        self._folder: TemporaryFolder | None = None
        self._reading: list[asyncio.Task[None]] = []
        self._last_lines: deque[str] = deque(maxlen=_LINES)

    async def command(self, words: Sequence[str], modules: Sequence[str], user: str | None) -> list[str]:
        """The command that does what `words` do, in a fork. Raises ConfigError if the modules cannot be loaded."""
        command = python_command(words)
        async with self._starting:
            if not self._lives():
                await self._end()
                await self._start(command, modules, user)
        assert self._folder is not None, "made by _start"
        folder = self._folder.path
        client = (command.python, "-I", "-S", str(folder / "client.py"), str(folder / "socket"))
        return [*command.before, *client, *command.arguments]

    async def close(self) -> None:
        async with self._starting:
            await self._end()

    def _lives(self) -> bool:
        """Not only its guard, which, where the server was killed, ends its scripts first."""
        if self._server is None or self._server.process.returncode is not None:
            return False
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return False
        return True

    async def _start(self, command: PythonCommand, modules: Sequence[str], user: str | None) -> None:
        self._folder = TemporaryFolder.make(
            "tandem-preloaded-"
        )  # those of earlier versions, tandem-preload-, have no locks
        folder = self._folder.path
        for file in _FILES:  # the user may not be allowed to read ours
            shutil.copy(file, folder)
        if user is not None:
            for path in (folder, *folder.iterdir()):
                os.chown(path, pwd.getpwnam(user).pw_uid, -1)
        named = (str(folder / "server.py"), "socket", str(folder / "guard.py"))
        words = (*command.before, command.python, *named, command.folder, *modules)
        try:
            self._server = await start_process(wrapped(ChildCommand(words, cwd=str(folder)), user, "off"))
            is_ready = await self._is_ready(self._server.process)
        except (OSError, ValueError) as exc:
            await self._end()
            raise ConfigError(f"agent_preload: {exc}") from exc
        except BaseException:  # cancelled too: nothing will use this server, so its process must end
            await asyncio.shield(self._end())
            raise
        if is_ready:
            log.info("agent's packages loaded python=%s modules=%s", command.python, ",".join(modules))
            return
        await self._end()
        reason = " | ".join(self._last_lines) or f"it was not ready after {LOADING_S:g} s"
        raise ConfigError(f"agent_preload: {command.python} cannot load {', '.join(modules)}: {reason}")

    async def _is_ready(self, process: Process) -> bool:
        assert process.stdout is not None
        assert process.stderr is not None
        self._last_lines.clear()
        self._reading = [asyncio.create_task(self._read(process.stderr), name="agent_preload stderr")]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOADING_S):
                while line := await process.stdout.readline():
                    words = line.decode(errors="replace").split()
                    if words[:1] == [fork_server.READY]:
                        self._pid = int(words[1])
                        reading = asyncio.create_task(self._read(process.stdout), name="agent_preload stdout")
                        self._reading.append(reading)
                        return True
        return False

    async def _read(self, pipe: asyncio.StreamReader) -> None:
        while piece := await pipe.read(64 * 1024):
            self._last_lines.extend(piece.decode(errors="replace").splitlines()[-_LINES:])

    async def _end(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await asyncio.shield(end_process(server))
        for reading in self._reading:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reading, 1.0)
        self._reading = []
        if self._folder is not None:
            self._folder.remove()
            self._folder = None
