"""Runs one tool server and ends all its processes: `python -I -S guard.py LIFELINE COMMAND ARGUMENT...`

    sampler ──lifeline──▶ guard ──▶ server ──▶ all descendants, in any process group or session, orphaned or not
       └──────────────stdin, stdout, stderr──────▶┘

The guard is a subreaper: a descendant that loses its parent becomes the guard's child, so `setsid`, `nohup` and a double fork
do not escape it. It ends all of them when the server has ended, on SIGTERM, and when the lifeline closes. The lifeline is a
pipe held only by the sampler: it closes even if the sampler is killed by SIGKILL. Then the guard ends with the server's
status.

It reaps only its own children, never the sampler's. Standard library only, and few modules: there is one guard per session
(20 ms of processor time, 4.4 MB). MCP-Docker's warden (`shared.sandbox.warden`) is a guard that also confines
and watches.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

LEAVE_S = 2.0  # from SIGTERM to SIGKILL, for the server
LEFTOVERS_LEAVE_S = 0.3  # the same, for the server's remaining processes
KILL_S = 10.0  # limit for tools that start processes faster than they are killed
CANNOT_RUN = 127
PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # options of prctl(2)
_POLL_S = 0.01


class Observer:
    """Looks at the server's processes from time to time. (No `Protocol`: `typing` costs 4 ms and 0.9 MB.)"""

    next_poll_s: float | None = None

    def poll(self, server: int) -> bool:
        """Is a limit exceeded? Then all processes are ended."""
        return False

    def ended(self, status: int | None) -> None:
        """No process is left. `status`: the server's, as of `waitpid`; None: it was ended."""


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

    def signal(self, number: int, signalled: set[int]) -> None:
        """Signal every descendant not in `signalled`; the server's whole process group while the server lives."""
        if self.server not in signalled and self.status is None:
            signalled.add(self.server)
            _send(os.killpg, self.server, number)
            _send(os.kill, self.server, number)  # before its `setsid` it has no group
        for pid in descendants(os.getpid()):
            if pid not in signalled:
                signalled.add(pid)
                _send(os.kill, pid, number)


def main() -> None:
    command = sys.argv[2:]
    keep(int(sys.argv[1]), lambda: None, lambda: execute(command))


def keep(
    lifeline: int,
    prepare: Callable[[], None],
    run: Callable[[], None],
    observer: Observer | None = None,
    kill_s: float = KILL_S,
    leave_s: float = LEAVE_S,
) -> None:
    """Run `prepare` and then `run` in a child process, and end with its status when all descendants have ended: never returns.

    `leave_s`: from SIGTERM to SIGKILL, for the server. `kill_s`: limit for ending them by SIGKILL.
    """
    observer = observer or Observer()
    wakeup_end, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    signal.signal(signal.SIGTERM, note)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    children = ServerProcesses(_start(prepare, run, lifeline))
    null = os.open(os.devnull, os.O_RDWR)
    for own in (0, 1):  # only the server holds its pipes, so the sampler sees when it closes its stdout
        os.dup2(null, own)
    while children.status is None and not signals:
        ready = readable([lifeline, wakeup_end], observer.next_poll_s)
        if lifeline in ready:
            break
        if wakeup_end in ready:
            os.read(wakeup_end, 4096)
        children.reap()
        if children.status is None and observer.poll(children.server):
            break
    _end(children, leave_s if children.status is None else LEFTOVERS_LEAVE_S, kill_s)
    observer.ended(children.status)
    _end_as(children.status)


def readable(descriptors: Sequence[int], timeout_s: float | None = None) -> list[int]:
    """Those that can be read, or are closed at their other end. (`select.select` fails for descriptors from 1,024 on.)"""
    waiting = select.poll()
    for descriptor in descriptors:
        waiting.register(descriptor, select.POLLIN)
    return [ready for ready, _ in waiting.poll(None if timeout_s is None else 1000 * timeout_s)]


def _start(prepare: Callable[[], None], run: Callable[[], None], lifeline: int) -> int:
    """Return the server's pid. It leads its own session, and ends when the guard is killed."""
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        os.close(lifeline)
        os.setsid()
        prepare()
        prctl(PDEATHSIG, signal.SIGKILL)  # after `prepare`: another user's id clears it
        if os.getppid() != guard:
            os._exit(CANNOT_RUN)
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        run()
    except (OSError, ValueError) as exc:
        os.write(2, f"sandbox: {exc}\n".encode())
    finally:
        os._exit(CANNOT_RUN)


def execute(command: list[str]) -> None:
    """Become `command`. If it cannot be run, the message is on stderr and the caller's process continues."""
    try:
        os.execvp(command[0], command)
    except OSError as exc:
        os.write(2, f"cannot run {command[0]}: {exc.strerror}\n".encode())


def _end(children: ServerProcesses, grace_s: float, kill_s: float) -> None:
    """Send SIGTERM, then SIGKILL, until no child is left. Orphaned descendants become the guard's children, and are ended too."""
    signalled: set[int] = set()
    end = time.monotonic() + grace_s
    while True:
        children.reap()
        if not children.any_left or time.monotonic() > end:
            break
        children.signal(signal.SIGTERM, signalled)
        time.sleep(_POLL_S)  # orphans arrive one by one: no single wait covers all
    end = time.monotonic() + kill_s
    while children.any_left and time.monotonic() < end:
        children.signal(signal.SIGKILL, set())
        time.sleep(_POLL_S)  # a killed child's children become the guard's only after it ended
        children.reap()


def _send(how: Callable[[int, int], None], pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        how(pid, number)


def _end_as(status: int | None) -> None:
    if status is not None and os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL cannot be set, and need not be
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(1 if status is None else os.waitstatus_to_exitcode(status))


def descendants(pid: int) -> Iterator[int]:
    """Children, their children, and so on."""
    for child in _children(pid):
        yield child
        yield from descendants(child)


def _children(parent: int) -> list[int]:
    """The children of all threads of `parent`."""
    pids: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{parent}/task"):
            with open(f"/proc/{parent}/task/{thread}/children", "rb") as file:
                pids += map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        if os.path.exists("/proc/self/task") and not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
            # a kernel without CONFIG_PROC_CHILDREN
            return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(pid) == parent]
    return pids


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return None


def prctl(option: int, value: int) -> None:
    """Other systems than Linux lack the call: then only the server itself is ended."""
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        os.write(2, f"prctl({option}): {os.strerror(ctypes.get_errno())}\n".encode())


if __name__ == "__main__":
    main()
