"""Runs one stdio tool server and ends all its processes: `python -I -S guard.py LIFELINE COMMAND ARGUMENT...`

    sampler ──lifeline──▶ guard ──▶ server ──▶ all descendants, in any process group or session, orphaned or not
       └──────────────stdin, stdout, stderr──────▶┘

The guard is a subreaper: a descendant that loses its parent becomes the guard's child, so `setsid`, `nohup` and a double fork
do not escape it. It ends all of them when the server has ended, on SIGTERM, and when the lifeline closes. The lifeline is a
pipe held only by the sampler: it closes even if the sampler is killed by SIGKILL. Then the guard ends with the server's
status.

It reaps only its own children, never the sampler's. Standard library only, and few modules: there is one guard per session
(20 ms of processor time, 4.4 MB).
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time
from types import FrameType

LEAVE_S = 2.0  # from SIGTERM to SIGKILL, for the server
LEFTOVERS_LEAVE_S = 0.3  # the same, for the server's remaining processes
KILL_S = 10.0  # limit for tools that start processes faster than they are killed
CANNOT_RUN = 127
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_POLL_S = 0.01


class ServerProcesses:
    """The server and its orphaned descendants: all children of this process."""

    def __init__(self, server: int) -> None:
        self.server = server
        self.status: int | None = None  # the server's, once it has ended
        self.any_left = True

    def reap(self) -> None:
        """Collect all ended children."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.server:
                    self.status = status
        self.any_left = False

    def signal(self, number: int, told: set[int]) -> None:
        """Signal every child not in `told`; the server's whole process group while the server lives."""
        for pid in _children():
            if pid not in told:
                told.add(pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    if pid == self.server and self.status is None:
                        os.killpg(pid, number)
                    else:
                        os.kill(pid, number)


def main() -> None:
    lifeline, command = int(sys.argv[1]), sys.argv[2:]
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    asked: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    signal.signal(signal.SIGTERM, note)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    children = ServerProcesses(_start(command, lifeline))
    null = os.open(os.devnull, os.O_RDWR)
    for own in (0, 1):  # only the server holds its pipes, so the sampler sees when it closes its stdout
        os.dup2(null, own)
    while children.status is None and not asked:
        ready, _, _ = select.select([lifeline, told], [], [])
        if lifeline in ready:
            break
        os.read(told, 4096)
        children.reap()
    _end(children, LEAVE_S if children.status is None else LEFTOVERS_LEAVE_S)
    _end_as(children.status)


def _start(command: list[str], lifeline: int) -> int:
    """Return the server's pid. It leads its own session, and ends when the guard is killed."""
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.close(lifeline)
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(CANNOT_RUN)
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as exc:
        os.write(2, f"cannot run {command[0]}: {exc.strerror}\n".encode())
    finally:
        os._exit(CANNOT_RUN)


def _end(children: ServerProcesses, grace_s: float) -> None:
    """Send SIGTERM, then SIGKILL, until no child is left. Orphaned descendants become the guard's children, and are ended too."""
    told: set[int] = set()
    end = time.monotonic() + grace_s
    while True:
        children.reap()
        if not children.any_left or time.monotonic() > end:
            break
        children.signal(signal.SIGTERM, told)
        time.sleep(_POLL_S)  # orphans arrive one by one: no single wait covers all
    end = time.monotonic() + KILL_S
    while children.any_left and time.monotonic() < end:
        children.signal(signal.SIGKILL, set())
        time.sleep(_POLL_S)  # a killed child's children become the guard's only after it ended
        children.reap()


def _end_as(status: int | None) -> None:
    if status is not None and os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL cannot be set, and need not be
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(1 if status is None else os.waitstatus_to_exitcode(status))


def _children() -> list[int]:
    own = os.getpid()
    try:
        with open(f"/proc/self/task/{own}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(pid) == own]


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return None


def _prctl(option: int, value: int) -> None:
    """Other systems than Linux lack the call: then only the server itself is ended."""
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        os.write(2, f"prctl({option}): {os.strerror(ctypes.get_errno())}\n".encode())


if __name__ == "__main__":
    main()
