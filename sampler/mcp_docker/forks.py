"""The gateway's side of `fork_server`: starting bundled tools as forks, with the interface of `sandbox.SandboxedProcess`."""

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
from pathlib import Path
from typing import cast

from sampler.mcp_docker.errors import StartFailed
from sampler.mcp_docker.fork_server import MAX_START_BYTES
from sampler.mcp_docker.sandbox import Launch
from sampler.mcp_docker.sandbox.folders import folder_key
from sampler.mcp_docker.sandbox.processes import planned
from sampler.tools.server_process import MARK

log = logging.getLogger(__name__)

TOOLS = "sampler.mcp_docker.tools."
_PIPE_BYTES = 256 * 1024
_STDERR_BYTES = 4096
_FORK_END_S = 5.0
_LOADING_S = 120.0
_MB = 1024 * 1024
_SOURCES = Path(__file__).parents[2]


def bundled_module(command: Sequence[str]) -> str | None:
    """The module of `PYTHON -m sampler.mcp_docker.tools.NAME …`, if the command is one."""
    if len(command) >= 3 and command[0] == sys.executable and command[1] == "-m" and command[2].startswith(TOOLS):
        return command[2]
    return None


class ForkServer:
    """One per gateway. `modules`: those that it loads, and forks."""

    def __init__(self, modules: Sequence[str], state_folder: Path) -> None:
        self._modules, self._state_folder = list(modules), state_folder
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._numbers = itertools.count(1)
        self._running: dict[int, ForkedProcess] = {}
        self._ready = asyncio.Event()
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Raises StartFailed."""
        self._ready.clear()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mark = f"{folder_key(self._state_folder)}-{uuid.uuid4().hex}"  # by which the next gateway finds its forks
        environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(_SOURCES), MARK: mark}
        with theirs:
            command = [sys.executable, "-m", "sampler.mcp_docker.fork_server", str(theirs.fileno()), *self._modules]
            self._process = subprocess.Popen(  # noqa: ASYNC220 - returns at once
                command, stdin=subprocess.DEVNULL, env=environment, pass_fds=(theirs.fileno(),), start_new_session=True
            )
        asyncio.get_running_loop().add_reader(self._control, self._read)
        try:
            async with asyncio.timeout(_LOADING_S):
                await self._ready.wait()
        except TimeoutError as exc:
            await self.close()
            raise StartFailed("the bundled tools could not be loaded: see the log") from exc
        if self._control is None:
            raise StartFailed("the bundled tools could not be loaded: see the log")

    async def close(self) -> None:
        self._lose()
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)

    async def start(self, launch: Launch, module: str) -> "ForkedProcess":
        """Raises OSError, and ConfigError."""
        async with self._opening:
            if self._control is None:  # it was killed: its forks have ended with it
                await self.close()
                await self.open()
        control = self._control
        if control is None:
            raise OSError("the process that forks bundled tools has ended")
        number = next(self._numbers)
        body = _start_message(launch, module, number)
        stdin, write = os.pipe()
        read, stdout = os.pipe()
        read_errors, stderr = os.pipe()
        wardens_end, lifeline = os.pipe()
        report, wardens_report = os.pipe()
        theirs = [stdin, stdout, stderr, wardens_end, wardens_report]
        try:
            socket.send_fds(control, [body], theirs)
        except OSError:
            _close(write, read, read_errors, lifeline, report)
            raise
        finally:
            _close(*theirs)
        forked = self._running[number] = ForkedProcess(self, number, lifeline, report, launch.limits.output_mb * _MB)
        try:
            await forked.connect(write, read, read_errors)
        except BaseException:  # cancelled too: without its lifeline the fork ends
            self._running.pop(number, None)
            _close(lifeline, report)
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
        if "ended" in message:
            self._note_end(message["ended"], message["status"])
        self._ready.set()

    def _note_end(self, number: int, status: int) -> None:
        if (forked := self._running.pop(number, None)) is not None:
            forked.note_end(status)

    def _lose(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            asyncio.get_running_loop().remove_reader(control)
            control.close()
        self._ready.set()
        running, self._running = self._running, {}
        for forked in running.values():
            forked.let_go()
            forked.note_end(-int(signal.SIGKILL))


def _start_message(launch: Launch, module: str, number: int) -> bytes:
    """Raises OSError for one that the fork server would not read as a whole, and ConfigError."""
    environment, specification = planned(launch)
    arguments = list(launch.command[3:])
    message = {"start": number, "module": module, "arguments": arguments, "environment": environment}
    body = json.dumps(message | {"specification": specification.text()}).encode()
    if len(body) > MAX_START_BYTES:
        raise OSError(f"its arguments and environment have {len(body)} bytes; expected at most {MAX_START_BYTES}")
    return body


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class ForkedProcess:
    """`SandboxedProcess`, for a fork. Its status comes from the fork server, whose child it is."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader

    def __init__(self, server: ForkServer, number: int, lifeline: int, report: int, most_bytes: int) -> None:
        self._server, self._number = server, number
        self._lifeline, self._report = lifeline, report
        self._most_bytes, self._bytes = most_bytes, 0
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._errors = b""
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

    def note_output(self, data: bytes, is_error: bool) -> bool:
        """Count it. False: it is too much, and the process is ended."""
        self._bytes += len(data)
        if self._bytes > self._most_bytes:
            self._server.signal(self._number, signal.SIGTERM)
            return False
        if is_error:
            self._errors = (self._errors + data)[-_STDERR_BYTES:]
        return True

    def note_end(self, status: int) -> None:
        if not self._ended.done():
            self._ended.set_result(status)

    def let_go(self) -> None:
        """Its warden ends everything inside, then itself."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

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
        os.close(self._report)
        for transport in self._transports:
            cast(asyncio.ReadTransport, transport).close()


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
            self._into.feed_eof()
