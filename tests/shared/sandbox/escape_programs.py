"""Programs that try to get out of a sandbox, or to use more than their share, and what each meets at each level.

A program prints what it met (`met EPERM`) or what it reached (`reached …`); or a limit ends it (`exceeded memory_mb`).
An expectation is a list of alternatives, separated by `|`; `reached` there is an honest "not stopped at this level".
Programs with `alone` have a sandbox of their own; the others run one after the other in one.
"""

import platform
from dataclasses import dataclass
from textwrap import dedent

from shared.sandbox import Limits, seccomp
from shared.sandbox.launch import SandboxLimits

# Small: what is not stopped by the limit under test is stopped by another one.
SMALL = Limits(
    cpu_s=30, memory_mb=192, processes=24, open_files=64, file_mb=8, folder_mb=24, lifetime_s=60, output_mb=4
)  # fmt: skip
NOTHING = "met ENOENT|met EACCES|met EPERM|met EROFS"

PRELUDE = """
import ctypes, errno, mmap, os, resource, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def attempt(function, *arguments):
    try:
        result = function(*arguments)
    except OSError as exc:
        print("met", errno.errorcode.get(exc.errno, exc.errno), flush=True)
    except (MemoryError, RuntimeError, OverflowError) as exc:
        print("met", type(exc).__name__, flush=True)
    else:
        print("reached", repr(result)[:100], flush=True)

def written(path, data="1"):
    with open(path, "w") as file:
        file.write(data)
"""


@dataclass(frozen=True)
class Escape:
    name: str
    code: str
    process: str
    bubblewrap: str
    container: str
    alone: bool = False
    limits: SandboxLimits = SMALL
    needs: str = ""  # at the level `process`: "landlock" of this version, or "root", else it is not stopped

    def expected(self, level: str) -> list[str]:
        return str(getattr(self, level)).split("|")


def limited(name: str, code: str, met: str, container: str = "", limits: SandboxLimits = SMALL) -> Escape:
    """The same at both local levels, in a sandbox of its own."""
    return Escape(name, dedent(code), met, met, container or met, alone=True, limits=limits)


def everywhere(name: str, code: str, met: str) -> Escape:
    return Escape(name, code, met, met, met)


def kernel_call(name: str, call: str, arguments: str = "0", container: str = "met EPERM") -> Escape:
    """seccomp's answer."""
    number = seccomp.REFUSED[call][0 if platform.machine() == "x86_64" else 1]
    return Escape(name, f"attempt(call, {number}, {arguments})", "met EPERM", "met EPERM", container)


SHORT = Limits(cpu_s=30, memory_mb=192, processes=24, lifetime_s=1)
LITTLE_CPU = Limits(cpu_s=1, memory_mb=192, processes=24, lifetime_s=60)

PROCESSES = (
    limited(
        "fork bomb",
        """
        def bomb():
            while True:
                if os.fork() == 0:
                    time.sleep(30)
        attempt(bomb)
        """,
        "met EAGAIN|exceeded processes",
    ),
    limited(
        "fork bomb whose parents end",
        """
        started = time.monotonic()
        while time.monotonic() - started < 3:
            try:
                if os.fork():
                    os._exit(0)
            except OSError:
                time.sleep(0.001)
        """,
        "ended|exceeded",
    ),
    limited(
        "threads without end",
        """
        import threading
        def more():
            while True:
                threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        attempt(more)
        os._exit(0)
        """,
        "met RuntimeError|met MemoryError|exceeded",
    ),
    limited(
        "zombies",
        """
        def more():
            while True:
                if os.fork() == 0:
                    os._exit(0)
        attempt(more)
        """,
        "met EAGAIN|exceeded processes",
    ),
    limited(
        "SIGTERM ignored", "signal.signal(15, signal.SIG_IGN); time.sleep(600)", "exceeded lifetime_s", limits=SHORT
    ),
    limited(
        "daemon: setsid, double fork, SIGTERM ignored",
        """
        if os.fork():
            time.sleep(600)
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.signal(15, signal.SIG_IGN)
        time.sleep(600)
        """,
        "exceeded lifetime_s",
        limits=SHORT,
    ),
    limited(
        "processor: one process",
        "while True: pass",
        "exceeded cpu_s|signal 24|signal 9|status 152|status 137",
        limits=LITTLE_CPU,
    ),
    limited(
        "processor: many short processes",
        """
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if os.fork() == 0:
                while time.process_time() < 0.2: pass
                os._exit(0)
            os.wait()
        print("reached the end")
        """,
        "exceeded cpu_s",
        "reached the end",  # a container has --cpus and the lifetime, and no total of its processes
        limits=LITTLE_CPU,
    ),
    Escape(
        "higher priority",
        "attempt(os.nice, -5)",
        "met EPERM|met EACCES",
        "met EPERM|met EACCES",
        "met EPERM|met EACCES",
    ),
    Escape(
        "real-time scheduling",
        "attempt(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(50))",
        "met EPERM",
        "met EPERM",
        "met EPERM",
    ),
    Escape(
        "signal to the warden",
        "attempt(os.kill, WARDEN, 9)",
        "met EPERM",
        "met ESRCH",
        "met ESRCH",
        needs="landlock 6|root",
    ),
    Escape(
        "signal to another session",
        "attempt(os.kill, OTHER, 9)",
        "met EPERM",
        "met ESRCH",
        "met ESRCH",
        needs="landlock 6|root",
    ),
    Escape(
        "ptrace of another session",
        "attempt(call, 101, 16, OTHER, 0, 0)",
        "met EPERM",
        "met EPERM",
        "met EPERM|met ESRCH",
    ),
    Escape(
        "memory of another session",
        "attempt(open, f'/proc/{OTHER}/mem', 'rb')",
        "met EACCES",
        "met ENOENT",
        "met ENOENT",
    ),
    Escape(
        "environment of another session",
        "attempt(open, f'/proc/{OTHER}/environ')",
        "met EACCES",
        "met ENOENT",
        "met ENOENT",
    ),
    Escape(
        "command line of another session",
        "attempt(open, f'/proc/{OTHER}/cmdline')",
        "met EACCES",
        "met ENOENT",
        "met ENOENT",
        needs="landlock 1",
    ),
    Escape(
        "environment of process 1",
        "attempt(lambda: b'TANDEM_TOOL' in open('/proc/1/environ', 'rb').read())",
        "met EACCES",
        "reached True",
        "reached False|met EACCES",
    ),
    Escape(
        "secrets in the gateway's environment",
        "print('reached', [value for value in os.environ.values() if 'gateway-secret' in value])",
        "reached []",
        "reached []",
        "reached []",
    ),
    Escape(
        "inherited descriptors",
        "def is_open(n):\n    try: os.fstat(n)\n    except OSError: return False\n    return True\n"
        "print('reached', [n for n in range(3, 64) if is_open(n)])",
        "reached []",
        "reached []",
        "reached []",
    ),
)

MEMORY_AND_OUTPUT = (
    limited("memory: one process", "attempt(bytearray, 400 << 20)", "met MemoryError", "signal 9|status 137"),
    limited(
        "memory: several processes",
        """
        for _ in range(8):
            if os.fork() == 0:
                kept = bytearray(os.urandom(1 << 20) * 60)
                time.sleep(8)
                os._exit(0)
        killed = sum(os.waitstatus_to_exitcode(os.wait()[1]) != 0 for _ in range(8))
        print("met the end of" if killed else "reached", killed, "processes")
        """,
        "met the end of|exceeded memory_mb|signal 9|status 137",
    ),
    limited(
        "memory: a shared mapping",
        """
        kept = mmap.mmap(-1, 400 << 20)
        for at in range(0, len(kept), 4096):
            kept[at] = 1
        time.sleep(20)
        print("reached 400 MB")
        """,
        "exceeded memory_mb|signal 9|status 137|signal 7",
    ),
    kernel_call("memory: memfd", "memfd_create", "b'x', 0", "reached"),  # counted by the container's cgroup
    Escape(
        "memory: /dev/shm",
        "attempt(lambda: [written(f'/dev/shm/tandem-escape-{n}', 'x' * (4 << 20)) for n in range(40)] and None)",
        "met EACCES",
        "met EFBIG|met ENOSPC",
        "met EFBIG|met ENOSPC",
        needs="landlock 1",
    ),
    kernel_call("memory: System V", "shmget", "0, 1 << 20, 0o1600", "reached"),  # counted by the container's cgroup
    kernel_call("System V message queue", "msgget", "0, 0o1600", "reached"),
    kernel_call("POSIX message queue", "mq_open", "b'x', 66, 384, 0", "reached"),
    limited("gigabytes on stdout", "while True: os.write(1, bytes(65536))", "exceeded output_mb"),
    limited("gigabytes on stderr", "while True: os.write(2, b'line\\n' * 10000)", "exceeded output_mb"),
    limited(
        "gigabytes by a process in the background",
        """
        if os.fork() == 0:
            while True: os.write(1, bytes(65536))
        time.sleep(60)
        """,
        "exceeded output_mb",
    ),
)
