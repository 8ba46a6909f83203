"""Forked tools that are alone: they can start no process and write no file, so one look at the process itself shows all of it.

    limit          kept by
    cpu_s          the kernel: rlimit of the one process
    memory_mb      the kernel: rlimit, and a cgroup where the gateway may make some; else looked at
    processes      the kernel: seccomp; threads by cgroup, or by the rlimit of the session's user
    files, folder  the kernel: seccomp, Landlock and rlimit
    lifetime_s     looked at

They end with the process that forks them, also if that is killed (PDEATHSIG).
"""

import contextlib
import os
import signal
import time
from typing import NamedTuple

from shared.processes.guard import PDEATHSIG, prctl
from shared.sandbox import cgroups, confinement, landlock
from shared.sandbox.warden import Specification
from shared.sandbox.watch import memory_of

_LOOK_S = 2.0
_MB = 1024 * 1024


class LoneTool(NamedTuple):
    specification: Specification
    ends_at: float


class LoneTools:
    """Of one fork server, whose children they are."""

    def __init__(self) -> None:
        self._tools: dict[int, LoneTool] = {}  # by pid
        self._exceeded: dict[int, str] = {}
        self._rules: dict[tuple[str, ...], int | None] = {}
        self._next_poll = 0.0

    def rules_of(self, what: Specification) -> int | None:
        """Landlock's, made once for all tools that may read the same: they may write nothing. Raises OSError."""
        assert what.confinement is not None
        readable = (*confinement.SYSTEM, *confinement.readable_files(what.confinement))
        if readable not in self._rules:
            self._rules[readable] = landlock.rules(readable, [])
        return self._rules[readable]

    def confine(self, what: Specification, rules: int | None, server: int) -> None:
        """Of this process, a child of `server`. Raises OSError and ValueError: then nothing may be run."""
        assert what.confinement is not None
        confinement.confine(what.confinement, rules, alone=True)
        prctl(PDEATHSIG, signal.SIGKILL)  # after `confine`: another user's id clears it
        if os.getppid() != server:
            os._exit(1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def add(self, pid: int, what: Specification) -> None:
        self._tools[pid] = LoneTool(what, time.monotonic() + what.bounds.lifetime_s)

    def remove(self, pid: int) -> str:
        """It has ended. Why, if it exceeded a limit."""
        tool = self._tools.pop(pid, None)
        if tool is not None:
            cgroups.remove(tool.specification.cgroups)
        return self._exceeded.pop(pid, "")

    def end_all(self) -> None:
        for pid in self._tools:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in list(self._tools):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            self.remove(pid)

    def next_poll_s(self) -> float | None:
        return max(0.0, self._next_poll - time.monotonic()) if self._tools else None

    def poll(self) -> None:
        now = time.monotonic()
        if now < self._next_poll:
            return
        self._next_poll = now + _LOOK_S
        for pid, tool in self._tools.items():
            if pid not in self._exceeded and (why := _exceeded(pid, tool, now)) is not None:
                self._exceeded[pid] = why
                os.kill(pid, signal.SIGKILL)


def _exceeded(pid: int, tool: LoneTool, now: float) -> str | None:
    bounds = tool.specification.bounds
    if now >= tool.ends_at:
        return f"lifetime_s: the process was there for {bounds.lifetime_s:g} s"
    if not any("/memory" in path for path in tool.specification.cgroups) and memory_of(pid) > bounds.memory_mb * _MB:
        return f"memory_mb: the process uses more than {bounds.memory_mb} MB"
    return None
