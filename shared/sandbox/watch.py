"""Limits on all processes of a start together, which rlimits cannot express: the warden looks at them from time to time.

It looks often while they use the processor and seldom while they are idle. So these limits are exceeded for a moment before
they act; the kernel's (rlimits, cgroups) bound what fits into that moment.
Standard library only: it runs in the warden.
"""

import contextlib
import os
import resource
import signal
import stat
import time
from typing import NamedTuple

from shared.processes.guard import Observer, descendants

_BUSY_S, _IDLE_S = 0.25, 2.0
_LATEST_SCAN_S = 30.0  # also while they are idle: what they write may cost less than a tick of the processor's clock
_SCAN_SHARE = 20  # reading the folder takes at most this part of the time
_ENTRY_BYTES = 4096
_MOST_LEVELS = 128
_REMOVE_S = 60  # for an engine that does not answer; the next gateway removes the container then
_SIGNALS = {
    signal.SIGXCPU.value: "cpu_s: a process used as much processor time as all may",
    signal.SIGXFSZ.value: "file_mb: a process wrote a larger file",
}
# Of version 1, and of 2. A process that the kernel kills since the whole machine lacks memory is counted as killed, too.
_MEMORY_KILLED = (("memory.oom_control", "oom_kill"), ("memory.events", "oom_kill"))
_MEMORY_REFUSED = (("memory.failcnt",), ("memory.events", "oom"))
_MOST_USED = (
    "memory.memsw.max_usage_in_bytes",
    "memory.max_usage_in_bytes",
)  # Linux 6.18 counts no refusal of the first
_REFUSED_AT_ONCE = 4 * 1024 * 1024
_MB = 1024 * 1024
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Bounds(NamedTuple):
    """As in `Limits`."""

    cpu_s: float
    memory_mb: int
    processes: int
    folder_mb: int
    lifetime_s: float


class Watch(Observer):
    """Reports the exceeded limit on `report`, as text."""

    def __init__(self, bounds: Bounds, folder: str, report: int, cgroups: list[str], remove: list[str]) -> None:
        """`remove` is the command that removes a container, whose engine watches its processes: they are not the warden's."""
        self._bounds = bounds
        self._folder = folder
        self._report = report
        self._cgroups = cgroups
        self._remove = remove
        self._end = time.monotonic() + bounds.lifetime_s
        self._cpu_s = -1.0
        self._next_scan = self._latest_scan = 0.0
        self._is_scanned = False  # since they last used the processor
        self._has_reported = False
        self.next_poll_s: float | None = _BUSY_S

    def poll(self, server: int) -> bool:
        exceeded = self._exceeded()
        if exceeded is None:
            return False
        self._report_limit(exceeded)
        return True

    def ended(self, status: int | None) -> None:
        if status and (reason := kept_by_the_kernel(self._cgroups, self._bounds, status)):
            self._report_limit(reason)
        for cgroup in self._cgroups:
            with contextlib.suppress(OSError):
                os.rmdir(cgroup)
        if self._remove:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_REMOVE_S)
            quiet = [(os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]  # it may have been removed already
            os.waitpid(os.posix_spawnp(self._remove[0], self._remove, os.environ, file_actions=quiet), 0)

    def _report_limit(self, exceeded: str) -> None:
        """The first alone: what follows may be its consequence."""
        if not self._has_reported:
            os.write(self._report, exceeded.encode())
            self._has_reported = True

    def _exceeded(self) -> str | None:
        now = time.monotonic()
        if now >= self._end:
            return f"lifetime_s: the process was there for {self._bounds.lifetime_s:g} s"
        alive = list(descendants(os.getpid()))
        used = [usage for pid in alive if (usage := _usage(pid)) is not None]
        cpu_s = sum(cpu for cpu, _ in used) + _ended_cpu_s()
        idle = cpu_s == self._cpu_s
        self._cpu_s = cpu_s
        self._wait(now, idle)
        if not self._remove and (exceeded := self._processes_exceed(alive, used)):
            return exceeded
        self._is_scanned = self._is_scanned and idle and not self._remove
        if now < self._next_scan or (self._is_scanned and now < self._latest_scan):
            return None
        size = folder_bytes(self._folder, self._bounds.folder_mb * _MB) + unlinked_bytes(alive)
        self._is_scanned = True
        self._next_scan = now + _SCAN_SHARE * (time.monotonic() - now)
        self._latest_scan = max(now + _LATEST_SCAN_S, self._next_scan)
        if size > self._bounds.folder_mb * _MB:
            return f"folder_mb: the folder's files take more than {self._bounds.folder_mb} MB"
        return None

    def _wait(self, now: float, idle: bool) -> None:
        wait = min(2 * (self.next_poll_s or _BUSY_S), _IDLE_S) if idle else _BUSY_S
        self.next_poll_s = max(0.0, min(wait, self._end - now))

    def _processes_exceed(self, alive: list[int], used: list[tuple[float, int]]) -> str | None:
        if self._cpu_s > self._bounds.cpu_s:
            return f"cpu_s: the processes used {self._cpu_s:.1f} s of processor time, of {self._bounds.cpu_s:g} s"
        if len(alive) > self._bounds.processes + 2:  # bubblewrap's own two
            return f"processes: there are {len(alive)} processes, of {self._bounds.processes}"
        most = self._bounds.memory_mb * _MB
        if sum(memory for _, memory in used) > most and sum(map(_share_of_memory, alive)) > most:
            return f"memory_mb: the processes use more than {self._bounds.memory_mb} MB together"
        return None


def kept_by_the_kernel(cgroups: list[str], bounds: Bounds, status: int) -> str | None:
    """The limit that a cgroup kept, by its own count, or an rlimit, by its own signal."""
    code = os.waitstatus_to_exitcode(status)
    exceeded = _SIGNALS.get(-code if code < 0 else code - 128)
    if exceeded is not None:  # bubblewrap adds 128
        return exceeded
    memory = f"memory_mb: the processes used more than {bounds.memory_mb} MB together"
    for cgroup in cgroups:
        if any(_count(cgroup, *each) for each in _MEMORY_KILLED) and _has_reached(cgroup, bounds.memory_mb * _MB):
            return memory
        if _count(cgroup, "pids.events", "max"):
            return f"processes: more than {bounds.processes} processes and threads were started"
    return None


def _has_reached(cgroup: str, most: int) -> bool:
    refused = any(_count(cgroup, *each) for each in _MEMORY_REFUSED)
    return refused or max(_count(cgroup, each) for each in _MOST_USED) >= most - _REFUSED_AT_ONCE


def _count(cgroup: str, file: str, name: str = "") -> int:
    """Of a file with one number, or with a line for each name. 0: the cgroup has none."""
    with contextlib.suppress(OSError, ValueError), open(f"{cgroup}/{file}", encoding="ascii") as lines:
        return sum(int(words[-1]) for words in map(str.split, lines) if name in ("", words[0]))
    return 0


def memory_of(pid: int) -> int:
    """Bytes of one process; pages that it shares are counted in part, if it may matter. 0: it has ended."""
    usage = _usage(pid)
    return 0 if usage is None else min(usage[1], _share_of_memory(pid)) if usage[1] > 64 * _MB else usage[1]


def folder_bytes(folder: str, enough: int) -> int:
    """On the disk; counts on until it is more than `enough`. A tree too deep to be read is more than enough."""
    total = 0
    pending = [(folder, 0)]
    while pending and total <= enough:
        path, level = pending.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    total += max(_ENTRY_BYTES, status.st_blocks * 512)
                    if stat.S_ISDIR(status.st_mode):
                        pending.append((entry.path, level + 1))
                    if total > enough:
                        break
        except FileNotFoundError:
            continue
        except PermissionError:  # not root, and a folder without rights: its files are counted when they can be read
            continue
        except OSError:  # a path that is too long
            return enough + 1
        if level > _MOST_LEVELS:
            return enough + 1
    return total


def unlinked_bytes(pids: list[int]) -> int:
    """Of files that are open and have no name."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    status = os.stat(f"/proc/{pid}/fd/{number}")
                    if status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
                        sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


def _usage(pid: int) -> tuple[float, int] | None:
    """Seconds of processor time, also of its ended children; bytes of memory, shared ones included. None: it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return sum(map(int, fields[11:15])) / _TICKS, int(fields[21]) * _PAGE


def _ended_cpu_s() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def _share_of_memory(pid: int) -> int:
    """Bytes; a page that n processes share counts 1/n in each."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(b"Pss:"))
    except OSError:
        usage = _usage(pid)
        return usage[1] if usage else 0
