"""Runs Python code in a process that keeps its state between calls, like a notebook: `python -m sampler.mcp_docker.tools.python`.

    server ──code, token (JSON lines)──▶ worker (`python_worker.py`) ──▶ exec
       ◀── the token (lines) ──────────────┘   └── stdout and stderr, one pipe ──▶ kept within bounds

When the time of a call is over the worker gets SIGINT, which keeps the state; if it does not return from that, its process group
is killed, and the next call begins with a new worker.
"""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sampler.mcp_docker.tools.serving import BundledServer, BundledTool, ToolArguments, argument, run, server_of
from sampler.mcp_docker.tools.shell import MAX_OUTPUT_CHARS
from shared.sandbox.bounded_output import BoundedOutput

_INTERRUPT_S = 2.0  # from SIGINT to SIGKILL
_BEGIN_S = 60.0
_POLL_S = 0.01
_TOKEN_BYTES = 16
_PENDING_BYTES = 4096  # more than the worker's line has


class PythonArguments(ToolArguments):
    code: str = argument(description="Python code; the value of a last expression is printed", max_length=1_000_000)
    timeout_s: float = argument(60.0, description="after which the code is interrupted", gt=0, le=3600)


class PythonWorker:
    """A child process with a namespace."""

    def __init__(self) -> None:
        code, self._code = os.pipe()
        self._done, done = os.pipe()
        self._output, output = os.pipe()
        for mine in (self._done, self._output):
            os.set_blocking(mine, False)
        self._pending = b""
        self._token = secrets.token_hex(
            _TOKEN_BYTES
        )  # the worker's next line; code may write others to its descriptors
        self._waits = False  # for code; it has said so
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-u",
                str(Path(__file__).with_name("python_worker.py")),
                str(code),
                str(done),
                self._token,
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(code, done),
            start_new_session=True,
        )
        for its in (code, done, output):
            os.close(its)

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    async def run(self, code: str, timeout_s: float, output: BoundedOutput) -> str:
        """How it ended; empty: as it should. Afterwards the worker may have ended."""
        if not self._waits and not await self._is_ready(_BEGIN_S, output):
            return f"the interpreter did not begin: {self._end()}"
        self._waits, self._token = False, secrets.token_hex(_TOKEN_BYTES)
        request = {"code": code, "token": self._token}
        await asyncio.to_thread(_write_all, self._code, json.dumps(request).encode() + b"\n")
        if await self._is_ready(timeout_s, output):
            return ""
        if not self.lives:
            return f"the interpreter ended ({self._end()}); its state is lost"
        self._process.send_signal(signal.SIGINT)
        if await self._is_ready(_INTERRUPT_S, output):
            return f"interrupted after {timeout_s:g} s; the state is kept"
        self._end()
        return f"killed after {timeout_s:g} s, since it went on after SIGINT; the state is lost"

    def close(self) -> None:
        self._end()
        for mine in (self._code, self._done, self._output):
            os.close(mine)

    def _end(self) -> str:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        return f"signal {-status}" if status < 0 else f"status {status}"

    async def _is_ready(self, within_s: float, output: BoundedOutput) -> bool:
        """Has the worker said that it waits for code?"""
        end = asyncio.get_running_loop().time() + within_s
        while True:
            alive = self.lives
            ready = self._has_line()
            output.add_available(self._output)
            self._waits = self._waits or ready
            if ready or not alive or asyncio.get_running_loop().time() >= end:
                return ready
            await asyncio.sleep(_POLL_S)

    def _has_line(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._done, 65536):
                self._pending = (self._pending + piece)[-_PENDING_BYTES:]
        _, separator, rest = self._pending.partition(self._token.encode() + b"\n")
        if separator:
            self._pending = rest
        return bool(separator)


def _write_all(descriptor: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # the worker has ended, which is found then
        while data:
            data = data[os.write(descriptor, data) :]


class PythonNotebook:
    """One worker at a time, and one call at a time."""

    def __init__(self) -> None:
        self._worker: PythonWorker | None = None
        self._turn = asyncio.Lock()

    async def execute(self, arguments: PythonArguments) -> str:
        async with self._turn:
            output = BoundedOutput(MAX_OUTPUT_CHARS)
            worker = self._worker = self._worker or PythonWorker()
            try:
                problem = await worker.run(arguments.code, arguments.timeout_s, output)
            except asyncio.CancelledError:
                self._close()
                raise
            if not worker.lives:
                self._close()
            return f"{output.text}\n[{problem}]" if problem else output.text

    async def restart(self, arguments: ToolArguments) -> str:
        async with self._turn:
            self._close()
        return "the state is empty"

    def _close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


def tool_server(arguments: Sequence[str] = ()) -> BundledServer:
    notebook = PythonNotebook()
    description = "Runs Python code in the working folder. Variables, imports and files persist between calls."
    return server_of(
        "python",
        [
            BundledTool("run", description, PythonArguments, notebook.execute),
            BundledTool("restart", "Discards all variables and imports.", ToolArguments, notebook.restart),
        ],
    )


if __name__ == "__main__":
    run(tool_server(sys.argv[1:]))
