"""A tool's processes end with its session: in the background, in another session, twice forked, or if the sampler is killed.

Real processes, counted by a word in their command line that no other process has.
"""

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from sampler.core.errors import ToolServerDied
from sampler.core.tools import ToolServer, ToolSession
from tests.conftest import ROOT
from tests.sampler.boxes import PATIENCE_S, SERVERS

SHELL = str(SERVERS / "bare_shell.py")
SLEEP = "exec -a {word} sleep 575"  # its command line is the word
# Each leaves at least one process that sleeps for ten minutes, and returns at once.
ESCAPES = {
    "background": f"bash -c '{SLEEP}' >/dev/null 2>&1 &",
    "nohup": f"nohup bash -c '{SLEEP}' >/dev/null 2>&1 &",
    "setsid": f"setsid bash -c '{SLEEP}' >/dev/null 2>&1 &",
    "double fork": f"(setsid bash -c '({SLEEP}) & ({SLEEP}) &' >/dev/null 2>&1 &)",
    "deaf": f"setsid bash -c 'trap \"\" TERM INT HUP; ({SLEEP}) & while :; do sleep 1; done' >/dev/null 2>&1 &",
    "daemon": f"{shlex.quote(sys.executable)} -S {shlex.quote(str(SERVERS / 'daemon.py'))} {{word}}",
}
MARKED = [name for name in ESCAPES if name != "daemon"]  # it has another environment


def shell(name: str = "shell") -> ToolServer:
    return ToolServer(name=name, command=sys.executable, args=("-S", SHELL))


def living(word: str) -> list[int]:
    """Processes with `word` in their command line."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(
            word in part for part in process.info["cmdline"] or ()
        ):
            found.append(process.pid)
    return found


async def none_left(word: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while living(word):  # noqa: ASYNC110 - other processes end
            await asyncio.sleep(0.02)


async def leave(session: ToolSession, word: str, *escapes: str) -> None:
    for escape in escapes:
        await session.call("run", {"command": ESCAPES[escape].format(word=word)})
    async with asyncio.timeout(PATIENCE_S):
        while len(living(word)) < len(escapes):  # noqa: ASYNC110 - other processes begin
            await asyncio.sleep(0.02)


@pytest.fixture
def word() -> str:
    return f"left-{uuid.uuid4().hex}"


async def test_a_tools_remaining_processes_end_with_the_session(word: str) -> None:
    own = subprocess.Popen(  # noqa: ASYNC220 - a child as asyncio would not start it
        [sys.executable, "-S", "-c", "input()", word], stdin=subprocess.PIPE
    )
    try:
        async with ToolSession([shell()]) as session, ToolSession([shell()]) as other:
            await leave(session, word, *ESCAPES)
            await leave(other, f"{word}-other", "setsid")
            await session.close()
            assert set(living(word)) == {own.pid, *living(f"{word}-other")}, "only those of the other session, and ours"
            assert living(f"{word}-other")
            assert (await other.call("run", {"command": "echo still here"})).text == "still here\n"
        assert living(word) == [own.pid]
        assert own.poll() is None, "a child of the sampler's own is not touched"
    finally:
        own.communicate()


async def test_a_server_that_exits_ends_its_descendants_and_its_status_is_reported(word: str) -> None:
    async with ToolSession([shell()]) as session:
        await leave(session, word, "background", "setsid", "double fork")
        with pytest.raises(ToolServerDied, match="ended with status 3"):
            await session.call("exit", {"status": 3})
        await none_left(word)
    async with ToolSession([shell()]) as session:
        await leave(session, word, "setsid")
        with pytest.raises(ToolServerDied, match="was ended by signal 9"):
            await session.call("run", {"command": "kill -9 $PPID"})
        await none_left(word)


async def call_for_ever(session: ToolSession) -> None:
    """A busy machine may run a call before a signal arrives."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await session.call("run", {"command": "echo"})


async def test_a_killed_guard_ends_its_server_and_the_rest_ends_with_the_session(word: str) -> None:
    async with ToolSession([shell()]) as session:
        await leave(session, word, *MARKED)
        guard = int((await session.call("run", {"command": "ps -o ppid= -p $PPID"})).text)
        os.kill(guard, signal.SIGKILL)
        with pytest.raises(ToolServerDied):
            await call_for_ever(session)
    assert living(word) == []


SAMPLER = """
import asyncio, sys
import uvloop
from sampler.core.tools import ToolSession
from tests.sampler.test_tool_processes import ESCAPES, leave, shell

async def main():
    async with ToolSession([shell()]) as session, ToolSession([shell("second")]) as second:
        await leave(session, sys.argv[1], *ESCAPES)
        await leave(second, sys.argv[1] + "-second", "double fork")
        print("ready", flush=True)
        await asyncio.sleep(600)

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
"""


async def test_tools_remaining_processes_end_when_the_sampler_is_killed(word: str) -> None:
    command = [sys.executable, "-c", SAMPLER, word]
    with subprocess.Popen(  # noqa: ASYNC220
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert await asyncio.to_thread(child.stdout.readline) == b"ready\n"
        servers = [process.pid for process in psutil.Process(child.pid).children(recursive=True)]
        assert len(living(word)) > len(ESCAPES)
        child.kill()
        await asyncio.to_thread(child.wait, PATIENCE_S)
    await none_left(word)
    async with asyncio.timeout(PATIENCE_S):
        while any(map(psutil.pid_exists, servers)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_an_invalid_command_and_a_missing_folder_are_reported(tmp_path: Path) -> None:
    for server, words in (
        (ToolServer(name="absent", command="/no/such/program"), "cannot run /no/such/program: No such file"),
        (ToolServer(name="lost", command="sh", cwd=str(tmp_path / "absent")), "No such file"),
    ):
        with pytest.raises(Exception, match=words):
            await ToolSession([server]).open()


async def test_sessions_leak_no_descriptor_and_no_process() -> None:
    before = len(os.listdir("/proc/self/fd")), len(psutil.Process().children(recursive=True))
    for _ in range(3):
        async with ToolSession([shell()]) as session:
            await session.call("run", {"command": "true"})
        with pytest.raises(Exception, match="absent"):
            await ToolSession([ToolServer(name="absent", command="/no/such/program")]).open()
    time.sleep(0)  # noqa: ASYNC251 - the loop's own clean-up has run
    assert (len(os.listdir("/proc/self/fd")), len(psutil.Process().children(recursive=True))) == before
