"""The gateway's side of `tools`: starting bundled tools as forks, with the interface of `shared.sandbox.SandboxedProcess`."""

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import uuid
from asyncio.streams import FlowControlMixin
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from shared.errors import TandemError
from shared.forks.tools import MAX_START_BYTES
from shared.processes.guarded import MARK, end_marked
from shared.processes.run_module import command
from shared.sandbox import Launch, cgroups
from shared.sandbox.folders import folder_key
from shared.sandbox.processes import planned, readable_for

log = logging.getLogger(__name__)

_PIPE_BYTES = 256 * 1024
_STDERR_BYTES = 4096
_REPORT_BYTES = 4096
_FORK_END_S = 5.0
_POLL_S = 0.01
_LOADING_S = 120.0
_MB = 1024 * 1024
_SOURCES = Path(__file__).parents[2]


class ForksFailed(TandemError):
    """The process that forks bundled tools does not start, or cannot load them."""


@dataclass(frozen=True, slots=True)
class LoadedTools:
    """`modules`: those that are loaded, and forked. `run`: "MODULE:FUNCTION", which serves the tool of a module in its fork.

    `with_wardens`: a module that `run` loads for tools that are not alone.
    """

    modules: Sequence[str]
    run: str
    with_wardens: str


class ForkServer:
    """One per gateway. `readable`: what some of its tools may read."""

    def __init__(self, tools: LoadedTools, state_folder: Path, readable: Sequence[Path] = ()) -> None:
        self._tools, self._state_folder, self._readable = tools, state_folder, readable
        self._alone: frozenset[str] = frozenset()  # modules whose tools have no warden
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._numbers = itertools.count(1)
        self._running: dict[int, ForkedProcess] = {}
        self._ready = asyncio.Event()
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Raises ForksFailed."""
        self._ready.clear()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mark = f"{folder_key(self._state_folder)}-{uuid.uuid4().hex}"  # by which the next gateway finds its forks
        environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(_SOURCES), MARK: mark}
        settings = {
            **asdict(self._tools),
            "state_folder": str(self._state_folder.resolve()),
            "readable": readable_for(sys.executable, tuple(self._readable), environment["PATH"]),
        }
        with theirs:
            words = command("shared.forks.tools", str(theirs.fileno()), json.dumps(settings))
            self._process = subprocess.Popen(  # noqa: ASYNC220 - returns at once
                words, stdin=subprocess.DEVNULL, env=environment, pass_fds=(theirs.fileno(),), start_new_session=True
            )
        asyncio.get_running_loop().add_reader(self._control, self._read)
        try:
            async with asyncio.timeout(_LOADING_S):
                await self._ready.wait()
        except TimeoutError as exc:
            await self.close()
            raise ForksFailed("the bundled tools could not be loaded: see the log") from exc
        if self._control is None:
            raise ForksFailed("the bundled tools could not be loaded: see the log")

    async def close(self) -> None:
        self._lose()
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)

    async def start(self, launch: Launch, module: str) -> "ForkedProcess":
        """Raises OSError, ConfigError and ForksFailed."""
        async with self._opening:
            if self._control is None:  # it was killed: its forks have ended with it
                await self.close()
                await self.open()
        control = self._control
        if control is None:
            raise OSError("the process that forks bundled tools has ended")
        number = next(self._numbers)
        body, joined, mark = _start_message(launch, module, number)
        stdin, write = os.pipe()
        read, stdout = os.pipe()
        read_errors, stderr = os.pipe()
        theirs, own = [stdin, stdout, stderr], []
        if module not in self._alone:
            wardens_end, lifeline = os.pipe()
            report, wardens_report = os.pipe()
            os.set_blocking(report, False)
            theirs += [wardens_end, wardens_report]
            own = [lifeline, report]
        try:
            socket.send_fds(control, [body], theirs)
        except OSError:
            _close(write, read, read_errors, *own)
            cgroups.remove(joined)
            raise
        finally:
            _close(*theirs)
        forked = ForkedProcess(self, number, own, joined, mark, launch.limits.output_mb * _MB)
        self._running[number] = forked
        try:
            await forked.connect(write, read, read_errors)
        except BaseException:  # cancelled too: a fork that no session has must end, and its pipes be closed
            self._running.pop(number, None)
            forked.let_go()
            _close(*own[1:])
            raise
        return forked

    def signal(self, number: int, which: signal.Signals) -> None:
        if self._control is not None:
            self._control.send(json.dumps({"signal": number, "number": int(which)}).encode())

    def _read(self) -> None:
        assert self._control is not None
        try:
            body = self._control.recv(MAX_START_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            body = b""
        if not body:
            log.error("the process that forks bundled tools has ended")
            self._lose()
            return
        message = json.loads(body)
        if "ended" not in message:
            self._alone = frozenset(message["alone"])
            self._ready.set()
        elif (forked := self._running.pop(message["ended"], None)) is not None:
            forked.note_end(message["status"], message["why"])

    def _lose(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            asyncio.get_running_loop().remove_reader(control)
            control.close()
        self._ready.set()
        running, self._running = self._running, {}
        for forked in running.values():
            forked.let_go()
            forked.note_loss()


def _start_message(launch: Launch, module: str, number: int) -> tuple[bytes, list[str], str]:
    """With the cgroups that it joins, and its mark. Raises ConfigError, and OSError for one that is too long to be read."""
    environment, specification = planned(launch)
    arguments = list(launch.command[3:])
    message = {"start": number, "module": module, "arguments": arguments, "environment": environment}
    body = json.dumps(message | {"specification": specification.text()}).encode()
    if len(body) > MAX_START_BYTES:
        cgroups.remove(specification.cgroups)
        raise OSError(f"its arguments and environment have {len(body)} bytes; expected at most {MAX_START_BYTES}")
    return body, specification.cgroups, environment[MARK]


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class ForkedProcess:
    """`SandboxedProcess`, for a fork. Its status comes from the fork server, whose child it is."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader

    def __init__(
        self,
        server: ForkServer,
        number: int,
        pipes: Sequence[int],
        cgroups_joined: Sequence[str],
        mark: str,
        most_bytes: int,
    ) -> None:
        """`pipes`: the warden's lifeline and report; none: it has no warden. `mark`: in the environment of all its processes."""
        self._server, self._number = server, number
        self._pipes, self._cgroups, self._mark = list(pipes), cgroups_joined, mark
        self._is_lost = self.has_closed = False
        self._most_bytes, self._bytes = most_bytes, 0
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._errors = b""
        self._exceeded = ""
        self._transports: list[asyncio.BaseTransport] = []
        self._has_stopped = False

    async def connect(self, write: int, read: int, read_errors: int) -> None:
        loop = asyncio.get_running_loop()
        self.stdout = asyncio.StreamReader(limit=_PIPE_BYTES, loop=loop)
        out, _ = await loop.connect_read_pipe(lambda: _CountedPipe(self, self.stdout), os.fdopen(read, "rb", 0))
        errors, _ = await loop.connect_read_pipe(lambda: _CountedPipe(self, None), os.fdopen(read_errors, "rb", 0))
        into, flow = await loop.connect_write_pipe(FlowControlMixin, os.fdopen(write, "wb", 0))
        self.stdin = asyncio.StreamWriter(into, flow, None, loop)
        self._transports = [out, errors, into]

    @property
    def stderr(self) -> str:
        return self._errors.decode("utf-8", "replace")

    @property
    def exceeded(self) -> str:
        """The limit for which the process was ended, by its name in `Limits` and in words; empty: none is known."""
        if not self._exceeded and self._pipes:
            with contextlib.suppress(BlockingIOError):
                self._exceeded = os.read(self._pipes[-1], _REPORT_BYTES).decode("utf-8", "replace")
        return self._exceeded

    def note_output(self, data: bytes, is_error: bool) -> bool:
        """Count it. False: it is too much, and the process is ended."""
        self._bytes += len(data)
        if self._bytes > self._most_bytes:
            self._exceeded = f"output_mb: more than {self._most_bytes // _MB} MB were written to stdout and stderr"
            self._server.signal(self._number, signal.SIGTERM)
            return False
        if is_error:
            self._errors = (self._errors + data)[-_STDERR_BYTES:]
        return True

    def note_end(self, status: int, why: str = "") -> None:
        self._exceeded = self._exceeded or why
        if not self._ended.done():
            self._ended.set_result(status)

    def note_loss(self) -> None:
        """The process that forks has ended, and this one with it; no message tells the time of its end."""
        self._is_lost = True
        self.note_end(-int(signal.SIGKILL))

    def let_go(self) -> None:
        """Its warden ends everything inside, then itself; without a warden, it is killed."""
        if len(self._pipes) > 1:
            os.close(self._pipes.pop(0))
        elif not self._pipes:
            self._server.signal(self._number, signal.SIGKILL)

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    async def stop(self) -> None:
        """At once: a bundled tool has nothing to write down, its folder ends with the session."""
        if self._has_stopped:
            return
        self._has_stopped = True
        self.let_go()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FORK_END_S):
                await self.wait()
        if not self._ended.done():
            self._server.signal(self._number, signal.SIGKILL)
            await self.wait()
        if self._pipes and await self.wait() == -signal.SIGKILL:  # the warden has ended nothing
            await asyncio.to_thread(end_marked, self._mark)
            cgroups.remove(self._cgroups)
        for pipe in self._pipes:  # now that the warden writes no more
            os.close(pipe)
        self._pipes = []
        if self._is_lost:
            await self._until_gone()
        for transport in self._transports:
            cast(asyncio.ReadTransport, transport).close()

    async def _until_gone(self) -> None:
        """Its stdout is closed and its cgroups are empty when it has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FORK_END_S):
                while not self.has_closed:  # noqa: ASYNC110 - rare
                    await asyncio.sleep(_POLL_S)
                while any(map(os.path.exists, self._cgroups)):
                    cgroups.remove(self._cgroups)
                    await asyncio.sleep(_POLL_S)


class _CountedPipe(asyncio.Protocol):
    def __init__(self, process: ForkedProcess, into: asyncio.StreamReader | None) -> None:
        self._process, self._into = process, into

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._into is not None:
            self._into.set_transport(transport)

    def data_received(self, data: bytes) -> None:
        if self._process.note_output(data, self._into is None) and self._into is not None:
            self._into.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._into is not None:
            self._process.has_closed = True
            self._into.feed_eof()
