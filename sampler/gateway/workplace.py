"""Where an agent's command runs, and how it is started there: as a plain child, or in a sandbox (`agent_sandbox`)."""

import asyncio
import os
import pwd
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sampler.core.tools.isolation import Sandbox, wrapped
from sampler.gateway.kept_files import bound
from shared.files.private_folder import make_private_folder
from shared.processes.guarded import ChildCommand, end_process, start_process
from shared.processes.temporary import TemporaryFolder, remove_left

Uncounted = Callable[[], AbstractAsyncContextManager[None]]  # what the block takes is not the command's time
_PREFIX = "tandem-command-"  # those of earlier versions, tandem-agent-, have no locks


@dataclass(frozen=True, slots=True)
class RunningCommand:
    """`ended`: its status, when it has ended. `end`: all its processes, and return when none is left.

    `exceeded`: from its status and the end of its stderr to the limit that ended it, by its name and in words; empty: none.
    """

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader
    ended: Callable[[], Awaitable[int]]
    end: Callable[[], Awaitable[None]]
    exceeded: Callable[[int, str], str] = lambda status, stderr: ""


@dataclass(frozen=True, slots=True)
class Workplace:
    """`folder`: the command's directory, of the user `owner` (user and group; None: this process's).

    `outputs`: the folder in which its output is kept. `start`: from its words and variables.
    """

    folder: Path
    outputs: Path | None
    owner: tuple[int, int] | None
    start: Callable[[Sequence[str], Mapping[str, str]], Awaitable[RunningCommand]]


@asynccontextmanager
async def plain_workplace(target: Path | None, user: str | None, sandbox: Sandbox) -> AsyncIterator[Workplace]:
    """`target`: the directory to keep. `user`, `sandbox`: as for tool servers. Raises ConfigError."""
    with _directory(target) as folder:
        owner = None
        if user is not None:
            account = pwd.getpwnam(user)
            owner = account.pw_uid, account.pw_gid
            os.chown(folder, *owner)

        async def start(words: Sequence[str], variables: Mapping[str, str]) -> RunningCommand:
            agent = ChildCommand(tuple(words), variables, str(folder))
            child = await start_process(wrapped(agent, user, sandbox))
            process = child.process
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            return RunningCommand(
                process.stdin, process.stdout, process.stderr, process.wait, lambda: end_process(child)
            )

        yield Workplace(folder, folder, owner, start)


@cache
def _remove_left_once() -> None:
    """What samplers left that were killed."""
    remove_left(_PREFIX)


@contextmanager
def _directory(target: Path | None) -> Iterator[Path]:
    if target is None:
        _remove_left_once()
        temporary = TemporaryFolder.make(_PREFIX, cleaning=False)
        try:
            yield temporary.path
        finally:
            temporary.remove()
        return
    folder = target.absolute()
    make_private_folder(folder)
    yield folder
    bound(folder)
