"""A forked tool without a warden: it can start nothing and write nothing, and ends with its server and at its limits."""

import asyncio
import ctypes
import json
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.sandbox import cgroups, landlock
from shared.sandbox.alone import LoneTools
from shared.sandbox.launch import SandboxLaunch, SandboxLimits
from shared.sandbox.processes import planned
from shared.sandbox.warden import Specification
from tests.shared.sandbox.starting import session_folder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux's confinement")
PATIENCE_S = 60.0


def specification(folder: Path, **limits: Any) -> Specification:
    command = (sys.executable, "-m", "sampler.mcp_docker.tools.calculator")
    return planned(SandboxLaunch(command, folder, limits=SandboxLimits(**limits)))[1]


def started(tools: LoneTools, what: Specification, run: Callable[[int], object]) -> tuple[int, int]:
    """Its pid, and a pipe with what it writes."""
    reading, writing = os.pipe()
    server = os.getpid()
    rules = tools.rules_of(what)
    pid = os.fork()
    if pid == 0:
        try:
            signal.set_wakeup_fd(-1)
            os.dup2(writing, 1)
            tools.confine(what, rules, server)
            run(1)
        except BaseException as exc:  # noqa: BLE001 - a forked program: it tells the test
            os.write(1, repr(exc).encode())
        finally:
            os._exit(0)
    os.close(writing)
    tools.add(pid, what)
    return pid, reading


def written(reading: int) -> bytes:
    text = b""
    while piece := os.read(reading, 65_536):
        text += piece
    os.close(reading)
    return text


def _clone(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    found = libc.syscall(number, ctypes.c_ulong(flags), None, None, None, None)
    if found == 0:
        os._exit(0)
    if found < 0:
        raise OSError(ctypes.get_errno(), "clone")


def _in_a_thread() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()


def attempts(folder: str) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "fork", os.fork
    yield "clone", lambda: _clone(signal.SIGCHLD)
    yield "clone like vfork", lambda: _clone(0x4000 | 0x100 | signal.SIGCHLD)
    yield "spawn", lambda: os.posix_spawn("/bin/true", ["true"], {})
    yield "exec", lambda: os.execv("/bin/true", ["true"])
    yield "write in the folder", lambda: open(f"{folder}/file", "w").close()
    yield "write in /tmp", lambda: open("/tmp/tandem-lone-tool", "w").close()
    yield "write in /dev/shm", lambda: open("/dev/shm/tandem-lone-tool", "w").close()
    yield "read /etc/passwd", lambda: open("/etc/passwd").close()
    yield "list the folders of others", lambda: os.listdir(os.path.dirname(folder))
    yield "signal the server", lambda: os.kill(os.getppid(), 0)
    yield "socket", lambda: __import__("socket").socket()
    yield "mount", lambda: os.chroot("/")
    yield "become root", lambda: os.setuid(0) if os.getuid() else os.chown("/etc", 0, 0)
    yield "thread", _in_a_thread
    yield "read a program", lambda: open("/bin/sh", "rb").close()
    yield "write to /dev/null", lambda: open("/dev/null", "w").close()


def _tried(folder: str, answer: int) -> None:
    found: dict[str, Any] = {}
    for name, attempt in attempts(folder):
        try:
            if attempt() == 0 and name == "fork":
                os._exit(0)
            found[name] = "reached"
        except OSError:
            found[name] = "met"
    found["descriptors"] = [number for number in range(3, 256) if os.path.exists(f"/proc/self/fd/{number}")]
    found["user"] = os.getuid()
    os.write(answer, json.dumps(found).encode())


async def test_it_starts_no_process_and_writes_no_file() -> None:
    async with session_folder() as folder:
        tools = LoneTools()
        what = specification(folder)
        pid, reading = started(tools, what, lambda answer: _tried(str(folder), answer))
        text = await asyncio.to_thread(written, reading)
        await asyncio.to_thread(os.waitpid, pid, 0)
        assert tools.remove(pid) == ""
        found = json.loads(text)
        assert what.confinement is not None
        assert what.confinement.user is None or found.pop("user") == what.confinement.user
        allowed = {"thread", "read a program", "write to /dev/null"}
        if landlock.abi() == 0:
            allowed |= {"read /etc/passwd"}
        if landlock.abi() < landlock.SCOPE_ABI and what.confinement.user is None:
            allowed |= {"signal the server"}
        assert {name for name, outcome in found.items() if outcome == "reached"} == allowed
        assert not any(map(os.path.exists, what.cgroups)), "its cgroups end with it"
        assert list(folder.iterdir()) == []


def _wait(answer: int) -> None:
    os.write(answer, b"ready")
    time.sleep(1000)


@pytest.mark.parametrize("limit", ["lifetime_s", "memory_mb", "cpu_s"])
async def test_it_ends_at_its_limits(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def compute(answer: int) -> None:
        while True:
            pass

    def fill(answer: int) -> None:
        held = [bytearray(1 << 20) for _ in range(512)]
        os.write(answer, b"%d" % len(held))
        time.sleep(1000)

    async with session_folder() as folder:
        tools = LoneTools()
        what = specification(folder, **{limit: {"lifetime_s": 0.1, "memory_mb": 96, "cpu_s": 1}[limit]})
        run = {"lifetime_s": _wait, "memory_mb": fill, "cpu_s": compute}[limit]
        pid, reading = started(tools, what, run)
        async with asyncio.timeout(PATIENCE_S):
            while not _has_ended(pid):
                tools.poll()
                await asyncio.sleep(0.05)
        why = tools.remove(pid)
        assert why.startswith(limit) or limit != "lifetime_s"
        assert b"512" not in written(reading)


async def test_memory_is_looked_at_where_there_are_no_cgroups() -> None:
    def fill_shared(answer: int) -> None:
        held = mmap.mmap(-1, 300 << 20)  # shared, which the rlimit does not count
        for at in range(0, 300 << 20, 4096):
            held[at] = 1
        _wait(answer)

    async with session_folder() as folder:
        tools = LoneTools()
        what = specification(folder, memory_mb=200)
        assert what.confinement is not None
        for cgroup in what.cgroups:
            os.rmdir(cgroup)
        what = what._replace(cgroups=[], confinement=what.confinement._replace(cgroups=[]))
        pid, reading = started(tools, what, fill_shared)
        async with asyncio.timeout(PATIENCE_S):
            while not _has_ended(pid):
                tools.poll()
                await asyncio.sleep(0.05)
        assert tools.remove(pid).startswith("memory_mb"), written(reading)
        os.close(reading)


async def test_it_ends_with_a_killed_server() -> None:
    async with session_folder() as folder:
        what = specification(folder)
        told, tell = os.pipe()
        server = os.fork()
        if server == 0:
            tools = LoneTools()
            pid, reading = started(tools, what, _wait)
            os.read(reading, 5)
            os.write(tell, str(pid).encode())
            signal.pause()
            os._exit(0)
        os.close(tell)
        tool = int(await asyncio.to_thread(os.read, told, 100))
        os.kill(server, signal.SIGKILL)
        await asyncio.to_thread(os.waitpid, server, 0)
        os.close(told)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while _lives(tool):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        finally:
            if _lives(tool):
                os.kill(tool, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            while any(map(os.path.exists, what.cgroups)):
                cgroups.remove(what.cgroups)
                await asyncio.sleep(0.05)


def _has_ended(pid: int) -> bool:
    return os.waitpid(pid, os.WNOHANG)[0] != 0


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
