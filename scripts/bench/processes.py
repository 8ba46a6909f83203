"""Child processes of a benchmark: their start and end, and what they use while they live."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
END_S = 60.0
_SCHEDULED = 2  # of Linux's clocks of processor time (CPUCLOCK_SCHED)


@contextmanager
def child(
    module: str,
    flags: Mapping[str, object],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    switches: Sequence[str] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m MODULE`, with its output in `folder`. `environment`: besides this process's."""
    values = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    with started([sys.executable, "-m", module, *values, *switches], folder / f"{module}.log", environment) as process:
        yield process


@contextmanager
def started(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    env = os.environ | {"OMP_NUM_THREADS": "1"} | dict(environment or {})
    with log.open("ab") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=env)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(END_S)


def wait_for_port(port: int, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)  # no event tells that a child listens on its port


def cpu_s(pid: int) -> float:
    """Processor time of a living process, to the nanosecond: /proc rounds each down to 10 ms, as much as a session costs."""
    return time.clock_gettime(~pid << 3 | _SCHEDULED)


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
