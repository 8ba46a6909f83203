"""A command in a guarded child process, such as a stdio tool server: starting it, and ending it with all its descendants.

A guard process (`shared.processes.guard`) runs between this process and the command: it ends the command's descendants, even
if this process is killed. If the guard itself is killed, the command ends with it, and the rest is found by a mark in the
environment.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
import uuid
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shared.processes import guard
from shared.processes.environment import minimal_environment

log = logging.getLogger(__name__)

MARK = "TANDEM_TOOL_SESSION"  # environment variable of a command and its descendants
_READ_AHEAD_BYTES = 256 * 1024  # asyncio buffers up to twice as much per pipe
_LEAVE_S = 2.0  # to exit after its stdin is closed
_KILL_S = 2.0  # on top of the guard's time
_POLL_S = 0.01
_SWEEPS = 100


@dataclass(frozen=True, slots=True)
class ChildCommand:
    """`env`: on top of the minimal environment; may hold secrets, as may the words."""

    words: tuple[str, ...] = field(repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class GuardedProcess:
    """`process` is the guard: it has the command's pipes and exit status, and ends all when `lifeline` is closed."""

    process: Process
    lifeline: int
    mark: str


async def start_process(command: ChildCommand) -> GuardedProcess:
    """Raises OSError and ValueError. A command that cannot be run is reported on stderr, with status 127."""
    mark = uuid.uuid4().hex
    guards_end, lifeline = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-I",
                "-S",
                str(Path(guard.__file__)),
                str(guards_end),
                *command.words,
            ),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=command.cwd,
            env=minimal_environment() | dict(command.env) | {MARK: mark},
            start_new_session=True,
            pass_fds=(guards_end,),
            limit=_READ_AHEAD_BYTES,
        )
    except BaseException:  # cancelled too: a started guard ends when the lifeline closes
        os.close(lifeline)
        raise
    finally:
        os.close(guards_end)
    return GuardedProcess(process, lifeline, mark)


async def end_process(guarded: GuardedProcess) -> None:
    """Close stdin and wait; then SIGTERM, then SIGKILL, descendants included. Returns when none is left."""
    process = guarded.process
    if process.stdin is not None:
        process.stdin.close()
    if not await has_ended(process, _LEAVE_S + guard.LEFTOVERS_LEAVE_S):
        _signal(process, signal.SIGTERM)
        if not await has_ended(process, guard.LEAVE_S + _KILL_S):
            _signal(process, signal.SIGKILL)
            if not await has_ended(process, _KILL_S):
                log.warning("process %d still runs after SIGKILL", process.pid)
    os.close(guarded.lifeline)
    if process.returncode == -signal.SIGKILL:
        await asyncio.to_thread(end_marked, guarded.mark)
    transport = getattr(process, "_transport", None)
    if transport is not None:  # otherwise a pipe held by another process would keep it open
        with contextlib.suppress(PermissionError):
            transport.close()


async def has_ended(process: Process, within_s: float) -> bool:
    """Not `process.wait()`: that also waits for pipes, which a grandchild may hold open."""
    end = time.monotonic() + within_s
    while process.returncode is None:
        if time.monotonic() >= end:
            return False
        await asyncio.sleep(_POLL_S)
    return True


def _signal(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        process.send_signal(number)


def end_marked(mark: str) -> None:
    """Kill the remaining processes of a killed guard until none is left."""
    variable = f"{MARK}={mark}".encode()
    for _ in range(_SWEEPS):
        pids = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if variable in _environment(pid)]
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)  # in a thread of its own; they are not our children, so there is no exit to wait for
    log.warning("the remaining processes of a killed guard cannot be ended: %s", pids)


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, or another user's
        return []
