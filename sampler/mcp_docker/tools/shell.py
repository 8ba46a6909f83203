"""Runs shell commands in the session's folder: `python -m sampler.mcp_docker.tools.shell`.

A command has its own process group, which is killed when its time is over. What it starts in the background lives until the
session ends.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence

from sampler.mcp_docker.tools.serving import BundledServer, BundledTool, ToolArguments, argument, run, server_of
from shared.sandbox.bounded_output import BoundedOutput

MAX_OUTPUT_CHARS = 20_000
_POLL_S = 0.02


class ShellArguments(ToolArguments):
    command: str = argument(description="a command line for bash (or sh)", max_length=100_000)
    timeout_s: float = argument(60.0, description="after which the command is killed", gt=0, le=3600)


async def run_command(arguments: ShellArguments) -> str:
    """Output of stdout and stderr in the order in which they were written, and the exit status."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    output = BoundedOutput(MAX_OUTPUT_CHARS)
    try:
        process = subprocess.Popen(  # noqa: ASYNC220 - it returns when the shell has begun
            [shutil.which("bash") or "/bin/sh", "-c", arguments.command],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            start_new_session=True,
        )
        os.close(writing)
        writing = -1
        timed_out = not await _has_ended(process, reading, output, arguments.timeout_s)
        if timed_out:
            _kill(process)
        output.add_available(reading)  # not until its end: a process in the background may hold the pipe open
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    status = f"killed after {arguments.timeout_s:g} s" if timed_out else f"exit status {process.returncode}"
    return f"{output.text}\n[{status}]"


async def _has_ended(process: subprocess.Popen[bytes], reading: int, output: BoundedOutput, within_s: float) -> bool:
    end = asyncio.get_running_loop().time() + within_s
    try:
        while process.poll() is None:
            output.add_available(reading)
            if asyncio.get_running_loop().time() >= end:
                return False
            await asyncio.sleep(_POLL_S)
    except asyncio.CancelledError:
        _kill(process)
        raise
    return True


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tool_server(arguments: Sequence[str] = ()) -> BundledServer:
    description = "Runs a shell command in the working folder. Files persist between calls; variables do not."
    return server_of("shell", [BundledTool("run", description, ShellArguments, run_command)])


if __name__ == "__main__":
    run(tool_server(sys.argv[1:]))
