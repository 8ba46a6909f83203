"""Starting a sandboxed process, reading it within bounds, and ending it with all its descendants."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import uuid
from asyncio.subprocess import Process, SubprocessStreamProtocol
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import cast

from shared.errors import ConfigError
from shared.processes.guarded import MARK, GuardedProcess, end_process, has_ended
from shared.sandbox import bubblewrap, cgroups, containers, warden
from shared.sandbox.confinement import Confinement, readable_files
from shared.sandbox.folders import end_left_of_start, folder_key, own
from shared.sandbox.launch import IsolationLevel, SandboxLaunch
from shared.sandbox.watch import Bounds

log = logging.getLogger(__name__)

_READ_AHEAD_BYTES = 256 * 1024  # asyncio buffers up to twice as much per pipe
_KEPT_BYTES = 4096  # of the end of stderr
_MB = 1024 * 1024
_PATH = "/usr/local/bin:/usr/bin:/bin"
_SOURCES = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class _Plan:
    command: list[str]
    environment: dict[str, str]
    specification: warden.Specification


class SandboxedProcess:
    """A started command. `pid` is its warden's: the warden ends when the command and all its descendants have ended."""

    def __init__(
        self,
        process: Process,
        lifeline: int,
        report: int,
        mark: str,
        output: "_BoundedOutput",
        end_orphans: Callable[[], None],
    ) -> None:
        """`end_orphans`: ends what a killed warden left; takes time, without an event loop."""
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self.stdin = process.stdin
        self.stdout = process.stdout
        self.stderr_pipe = process.stderr if output.streams_stderr else None
        self._process = process
        self._server = GuardedProcess(process, lifeline, mark)
        self._report = report
        self._output, self._end_left = output, end_orphans
        self._exceeded = ""
        self._stopping: asyncio.Task[None] | None = None

    @property
    def stderr(self) -> str:
        """The end of it."""
        return self._output.stderr_end.decode("utf-8", "replace")

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    @property
    def exceeded(self) -> str:
        """The limit for which the process was ended, by its name in `Limits` and in words; empty: none is known."""
        if self._output.exceeded:
            return f"output_mb: more than {self._output.most_bytes // _MB} MB were written to stdout and stderr"
        if not self._exceeded and self._report >= 0:
            with contextlib.suppress(BlockingIOError):
                self._exceeded = os.read(self._report, 4096).decode("utf-8", "replace")
        return self._exceeded

    async def wait(self) -> int:
        """The command's status, negative for a signal, after all its descendants have ended."""
        while not await has_ended(self._process, 3600.0):
            pass
        return self._process.returncode or 0

    async def stop(self) -> None:
        """End everything inside, and return when nothing is left. May be called again, and if it has ended."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(), name=f"stop of sandboxed process {self.pid}")
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        try:
            await end_process(self._server)
            if self._process.returncode == -signal.SIGKILL:
                await asyncio.to_thread(self._end_left)
            _ = self.exceeded
        finally:
            os.close(self._report)
            self._report = -1


class _BoundedOutput(SubprocessStreamProtocol):
    """Counts what is written to stdout and stderr, keeps the end of stderr, and ends the process that writes too much."""

    def __init__(self, most_bytes: int, streams_stderr: bool, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=_READ_AHEAD_BYTES, loop=loop)
        self.most_bytes = most_bytes
        self.streams_stderr = streams_stderr
        self.exceeded = False
        self.stderr_end = b""
        self._bytes = 0
        self._warden: asyncio.SubprocessTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._warden = cast(asyncio.SubprocessTransport, transport)  # uvloop's is no subclass of it
        super().connection_made(transport)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        self._bytes += len(data)
        if self._bytes > self.most_bytes:
            if not self.exceeded and self._warden is not None:
                self.exceeded = True
                with contextlib.suppress(ProcessLookupError):
                    self._warden.terminate()
            return
        if fd == 2:
            self.stderr_end = (self.stderr_end + data)[-_KEPT_BYTES:]
        if fd != 2 or self.streams_stderr:
            super().pipe_data_received(fd, data)


async def start(launch: SandboxLaunch, level: IsolationLevel, streams_stderr: bool = False) -> SandboxedProcess:
    """`streams_stderr`: `stderr_pipe` must be read, like `stdout`.

    Raises OSError, and ConfigError if the command or the folder cannot be used at this level.
    """
    mark = _mark(launch)
    plan = _plan(launch, level, mark)
    try:
        (wardens_end, lifeline), (report, wardens_report) = _two_pipes()
    except OSError:
        cgroups.remove(plan.specification.cgroups)
        raise
    os.set_blocking(report, False)
    loop = asyncio.get_running_loop()
    try:
        transport, protocol = await loop.subprocess_exec(
            lambda: _BoundedOutput(launch.limits.output_mb * _MB, streams_stderr, loop),
            *_warden_command(plan, wardens_end, wardens_report),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=plan.environment,
            start_new_session=True,
            pass_fds=(wardens_end, wardens_report),
        )
    except BaseException:  # cancelled too: a started warden ends when the lifeline closes
        os.close(lifeline)
        os.close(report)
        cgroups.remove(plan.specification.cgroups)
        raise
    finally:
        os.close(wardens_end)
        os.close(wardens_report)
    what = plan.specification
    end_orphans = partial(end_left_of_start, Path(what.folder), mark, what.cgroups, what.remove)
    return SandboxedProcess(Process(transport, protocol, loop), lifeline, report, mark, protocol, end_orphans)


def _two_pipes() -> tuple[tuple[int, int], tuple[int, int]]:
    """Both, or none. Raises OSError."""
    first = os.pipe()
    try:
        return first, os.pipe()
    except OSError:
        for end in first:
            os.close(end)
        raise


def planned(launch: SandboxLaunch) -> tuple[dict[str, str], warden.Specification]:
    """Environment and specification of a warden at IsolationLevel.PROCESS, for one that is forked and runs a function."""
    plan = _plan(launch, IsolationLevel.PROCESS, _mark(launch))
    return plan.environment, plan.specification


def _mark(launch: SandboxLaunch) -> str:
    """Of one start, by which the next gateway finds what it left."""
    return f"{folder_key(launch.folder.parent)}-{uuid.uuid4().hex}"


def tried(
    folder: Path, command: tuple[str, ...], level: IsolationLevel, limit_s: float
) -> subprocess.CompletedProcess[str]:
    """Run `command` to its end without an event loop. Raises subprocess.TimeoutExpired."""
    plan = _plan(SandboxLaunch(command, folder), level, "probe" + uuid.uuid4().hex)
    wardens_end, lifeline = os.pipe()
    wardens_report = os.open(os.devnull, os.O_WRONLY)
    try:
        return subprocess.run(
            _warden_command(plan, wardens_end, wardens_report),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            env=plan.environment,
            pass_fds=(wardens_end, wardens_report),
        )
    finally:
        for opened in (wardens_end, lifeline, wardens_report):
            os.close(opened)


def _warden_command(plan: _Plan, lifeline: int, report: int) -> list[str]:
    program = (sys.executable, "-I", "-S", str(Path(warden.__file__)))
    return [*program, str(lifeline), str(report), plan.specification.text(), *plan.command]


def _plan(launch: SandboxLaunch, level: IsolationLevel, mark: str) -> _Plan:
    limits = launch.limits
    folder = launch.folder.resolve()
    user = own(folder)
    bounds = Bounds(limits.cpu_s, limits.memory_mb, limits.processes, limits.folder_mb, limits.lifetime_s)
    if level is IsolationLevel.CONTAINER:
        name = f"tandem-mcp-{mark}"
        command = containers.run_command(launch, name, user, [str(path) for path in launch.readable])
        environment = {**containers.environment(launch), **containers.engine_environment(), MARK: mark}
        remove = containers.remove_command(name)
        return _Plan(command, environment, warden.Specification(str(folder), bounds, [], None, remove))
    environment = {"PATH": _PATH, "LANG": "C.UTF-8", "HOME": str(folder), **launch.environment, MARK: mark}
    environment.setdefault("TMPDIR", "/tmp" if level is IsolationLevel.BUBBLEWRAP else str(folder))
    readable = list(readable_for(launch.command[0], launch.readable, environment["PATH"]))
    joined = cgroups.make(mark, limits.memory_mb, limits.processes + 2)
    confinement = Confinement(
        folder=str(folder),
        readable=readable,
        network=launch.network,
        user=user,
        cpu_s=max(1, int(limits.cpu_s)),
        memory_mb=limits.memory_mb,
        processes=limits.processes,
        open_files=limits.open_files,
        file_mb=limits.file_mb,
        cgroups=joined,
        whole=level is IsolationLevel.PROCESS,
    )
    command = list(launch.command)
    if level is IsolationLevel.BUBBLEWRAP:
        program = bubblewrap.program()
        if program is None:
            raise ConfigError("isolation: bwrap is not on the PATH")
        command = bubblewrap.wrapped(
            command, program, str(folder), readable_files(confinement), launch.network, limits.memory_mb
        )
    return _Plan(command, environment, warden.Specification(str(folder), bounds, joined, confinement, []))


@cache
def readable_for(command: str, named: tuple[Path, ...], path: str) -> list[str]:
    """The Python installation, this package, the command's own program, and what the launch names. Raises ConfigError."""
    program = shutil.which(command, path=path)
    if program is None:
        raise ConfigError(f"sandbox: {command} is not a program on the PATH {path}; expected its whole path")
    always = [Path(sys.prefix), Path(sys.base_prefix), _SOURCES / "sampler", _SOURCES / "shared", Path(program)]
    both = {candidate for one in (*always, *named) for candidate in (one, one.resolve()) if candidate.exists()}
    return sorted(str(candidate) for candidate in both if not both.intersection(candidate.parents))
