"""How scripts that are forks end, with their episode, their server or their sampler: nothing is left."""

import asyncio
import resource
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from sampler.gateway.preload import PreloadedInterpreter
from tests.sampler.gateway.preloading import processes_of, run, script
from tests.sampler.mcp_docker.gateways import until_gone

MANY_FILES = 1100


def left_in(folder: Path) -> list[Path]:
    return list(folder.glob("tandem-preloaded-*"))


async def test_a_cancelled_start_leaves_no_half_loaded_server(folder: Path, preloaded: PreloadedInterpreter) -> None:
    (folder / "slow.py").write_text("import time\ntime.sleep(3)")
    words = [sys.executable, script(folder, "import slow\nprint(1)")]
    first = asyncio.create_task(run(words, preloaded, ["slow"]))
    others = [asyncio.create_task(run(words, preloaded, ["slow"])) for _ in range(2)]
    await asyncio.sleep(1)
    first.cancel()
    await asyncio.wait([first])
    assert [(one.status, one.stdout) for one in await asyncio.gather(*others)] == [(0, "1")] * 2


async def test_a_server_that_was_just_killed_is_not_asked(folder: Path, preloaded: PreloadedInterpreter) -> None:
    """Its guard still ends its scripts, which ignore SIGTERM."""
    stubborn = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write(f"{os.getpid()} {os.getppid()}")
time.sleep(3600)
"""
    running = asyncio.create_task(
        run([sys.executable, script(folder, stubborn), str(folder / "pids")], preloaded, ["heavy"])
    )
    processes = await processes_of(folder / "pids")
    server = processes[1].parent()
    assert server is not None
    server.kill()
    server.wait(10)
    (folder / "after.py").write_text("print(1)")
    assert (await run([sys.executable, str(folder / "after.py")], preloaded, ["heavy"])).stdout == "1"
    assert (await running).status == 1


async def test_all_processes_of_a_script_end_with_its_episode(folder: Path, preloaded: PreloadedInterpreter) -> None:
    stubborn = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
child.wait()
"""
    running = asyncio.create_task(
        run([sys.executable, script(folder, stubborn), str(folder / "pids")], preloaded, ["subprocess"])
    )
    processes = await processes_of(folder / "pids")
    running.cancel()
    await asyncio.wait([running])
    await until_gone(processes)
    assert (await run([sys.executable, script(folder, "print(1)")], preloaded, ["subprocess"])).stdout == "1"


async def test_a_killed_server_fails_its_scripts_and_the_next_starts_another(
    folder: Path, preloaded: PreloadedInterpreter
) -> None:
    waiting = "import os, sys, time\nopen(sys.argv[1], 'w').write(f'{os.getpid()} {os.getppid()}')\ntime.sleep(3600)"
    running = asyncio.create_task(
        run([sys.executable, script(folder, waiting), str(folder / "pids")], preloaded, ["heavy"])
    )
    processes = await processes_of(folder / "pids")
    server = processes[1].parent()
    server.kill()
    ended = await asyncio.wait_for(running, 60)
    assert ended.status == 1
    assert ended.stderr.endswith("the process that has the agent's packages loaded has ended")
    await until_gone([*processes, server])
    assert (await run([sys.executable, script(folder, "print(1)")], preloaded, ["heavy"])).stdout == "1"
    assert (folder / "loads").read_text() == "xx"


async def test_everything_ends_with_a_killed_sampler(folder: Path) -> None:
    waiting = "import os, sys, time\nopen(sys.argv[1], 'w').write(f'{os.getpid()} {os.getppid()}')\ntime.sleep(3600)"
    sampler = f"""
import asyncio
from pathlib import Path
from sampler.gateway.preload import PreloadedInterpreter
from tests.sampler.gateway.preloading import run
asyncio.run(run({[sys.executable, script(folder, waiting), str(folder / "pids")]}, PreloadedInterpreter(), ["heavy"]))
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", sampler)
    processes = await processes_of(folder / "pids")
    server = processes[1].parent()
    process.kill()
    await process.wait()
    await until_gone([*processes, server])


async def test_the_folder_of_a_killed_sampler_is_removed_by_the_next(
    folder: Path, preloaded: PreloadedInterpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    words = [sys.executable, script(folder, "print(1)")]
    sampler = f"""
import asyncio, os, signal, tempfile
from sampler.gateway.preload import PreloadedInterpreter
tempfile.tempdir = {str(folder)!r}
asyncio.run(PreloadedInterpreter().command({words}, ["heavy"], None))
os.kill(os.getpid(), signal.SIGKILL)
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", sampler)
    assert await process.wait() == -signal.SIGKILL
    (left,) = left_in(folder)
    earlier = folder / "tandem-preload-abc"  # of a process of an earlier version, which locked nothing
    earlier.mkdir()
    assert (await run(words, preloaded, ["heavy"])).stdout == "1"
    (own,) = left_in(folder)
    assert own != left
    another = PreloadedInterpreter()
    assert (await run(words, another, ["heavy"])).stdout == "1"
    assert len(left_in(folder)) == 2, "of a living one"
    await another.close()
    assert left_in(folder) == [own]
    assert earlier.exists()


async def test_scripts_run_where_more_than_a_thousand_files_are_open(
    folder: Path, preloaded: PreloadedInterpreter
) -> None:
    """As of a thousand scripts at once: `select.select` takes no descriptor from 1,024 on."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < MANY_FILES + 200:
        pytest.skip(f"this machine allows {hard} open files; expected {MANY_FILES + 200}")
    (folder / "greedy.py").write_text(f"""
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({MANY_FILES + 200}, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
files = [os.open(os.devnull, os.O_RDONLY) for _ in range({MANY_FILES})]
""")
    words = [sys.executable, script(folder, "import greedy, sys\nprint(max(greedy.files) > 1024)\nsys.exit(3)")]
    ended = await asyncio.gather(*(run(words, preloaded, ["greedy"]) for _ in range(4)))
    assert [(one.status, one.stdout) for one in ended] == [(3, "True")] * 4, ended
