"""Stops processes and their descendants by pid, in order. Standard library only, because the reaper imports it.

A pid is used only together with its process's start time, so that a recycled pid is never signalled. Descendants are found
by a mark in their environment, which they inherit across sessions, double forks and dead parents (torch's elastic
launcher, for example, starts every worker in its own session).
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "TANDEM_CHILD_OF"  # environment variable: "<run>-<launch>:<name of the child>"
LEFTOVER_GRACE_S = 3.0  # for descendants that outlive their parent


@dataclass(frozen=True, slots=True)
class Target:
    """A process that may have to be stopped. The lowest `stage` is stopped first, its processes together."""

    name: str
    pid: int
    started: int  # clock ticks since boot, `start_time(pid)`
    mark: str  # value of MARK in it and its descendants; "": none
    stage: int
    grace_s: float


def start_time(pid: int) -> int | None:
    """The process's start time in ticks since boot; None if there is no such process, or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def is_alive(target: Target) -> bool:
    return start_time(target.pid) == target.started


def marked(mark: str) -> list[int]:
    """Live processes of this user with `mark`."""
    variable = f"{MARK}={mark}".encode()
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue  # gone, or another user's
        if variable in environment.split(b"\0") and start_time(int(entry.name)) is not None:
            pids.append(int(entry.name))
    return pids


def stop(
    targets: Sequence[Target],
    *,
    force: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda text: None,
) -> None:
    """Stop stage by stage: SIGTERM, `grace_s`, SIGKILL. A true `force` skips the waiting. Returns when none is alive."""
    for stage in sorted({target.stage for target in targets}):
        _stop_stage([target for target in targets if target.stage == stage], force, note)


def _stop_stage(group: Sequence[Target], force: Callable[[], bool], show: Callable[[str], None]) -> None:
    def any_alive() -> bool:
        return any(map(is_alive, group))

    living = [target for target in group if is_alive(target)]
    if living:
        show("stopping " + ", ".join(target.name for target in living))
    for target in living:
        _signal(target.pid, signal.SIGTERM)
    _wait(any_alive, max(target.grace_s for target in group), force)
    for target in filter(is_alive, group):
        why = (
            "is killed, as the second Ctrl-C demands"
            if force()
            else f"did not end within {target.grace_s:g} s: killing it"
        )
        show(f"{target.name} {why}")
        _signal(target.pid, signal.SIGKILL)
    _wait(any_alive, LEFTOVER_GRACE_S, lambda: False)
    for target in group:
        _stop_leftovers(target, force)


def _stop_leftovers(target: Target, force: Callable[[], bool]) -> None:
    if not target.mark:
        return
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for pid in marked(target.mark):
            _signal(pid, sign)
        _wait(lambda: bool(marked(target.mark)), LEFTOVER_GRACE_S, force if sign == signal.SIGTERM else lambda: False)


def _wait(busy: Callable[[], bool], limit_s: float, force: Callable[[], bool]) -> None:
    deadline = time.monotonic() + limit_s
    while busy() and time.monotonic() < deadline and not force():
        time.sleep(0.05)  # not all are our children, so `wait` cannot be used


def _signal(pid: int, sign: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sign)
