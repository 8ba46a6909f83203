"""An agent's script as a fork of a process that has its packages: it must not be able to tell, nor outlive its episode."""

import asyncio
import os
import resource
import shlex
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

from sampler.config import SamplerConfig
from sampler.gateway.child import EndedCommand, run_command
from sampler.gateway.preload.interpreters import PreloadedInterpreter
from sampler.gateway.server import OpenAttempt
from shared.documents.states import RecordStatus
from shared.errors import ConfigError
from shared.store import Store
from tests.sampler.episodes import MODEL
from tests.sampler.gateway.agents import ScriptedEngine, played
from tests.sampler.mcp_docker.gateways import until_gone
from tests.sampler.test_secrets import OTHER_USER, needs_root

MANY_FILES = 1100
HEAVY = """
import os, pathlib, threading
with open(pathlib.Path(__file__).with_name("loads"), "a") as file:
    file.write("x")
if os.environ.get("HEAVY") == "threads":
    threading.Thread(target=threading.Event().wait, name="telemetry", daemon=True).start()
if os.environ.get("HEAVY") == "broken":
    raise RuntimeError("no licence")
"""
AGENTS = {
    "all that a script sees": """
import heavy, os, pathlib, sys
print(__name__, __file__, sys.argv, sys.path[0], os.environ["OPENAI_MODEL"], "DB_CONNECTION_STRING" in os.environ)
print(sys.stdin.read(), os.listdir("."), pathlib.Path.cwd().name.startswith("tandem-agent-"))
print(sys.modules["__main__"].__dict__.get("heavy") is heavy, sys.stdout.isatty(), os.getsid(0) == os.getpid())
print("and errors", file=sys.stderr)
""",
    "a status": "import sys\nsys.exit(3)",
    "last words": "import sys\nsys.exit('out of cheese')",
    "no status": "import sys\nsys.exit()",
    "a large status": "import sys\nsys.exit(300)",
    "an error": "def f():\n    raise ValueError('half a cheese')\nf()",
    "a mistake": "x = = 3",
    "exit functions": "import atexit\natexit.register(print, 'goodbye')\nprint('hello')",
    "a thread that goes on": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.3), print('late'))).start()",
    "a signal": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
    "an interrupt": "raise KeyboardInterrupt",
    "an event loop": "import asyncio\nasyncio.run(asyncio.sleep(0.01))\nprint('done')",
    "processes": """
import multiprocessing

def twice(x):
    return 2 * x

if __name__ == "__main__":
    for how in ("spawn", "fork", "forkserver"):
        with multiprocessing.get_context(how).Pool(1) as pool:
            print(pool.map(twice, [1, 2]))
""",
    "a child of its own": """
import subprocess, sys
print(subprocess.run([sys.executable, "-c", "print(7)"], capture_output=True).stdout)
""",
    "a pipe that is closed": """
import subprocess, sys
print(subprocess.run(["true"], input=b"x" * 1_000_000).returncode)
try:
    child = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    child.wait()
    child.stdin.write(b"x" * 1_000_000)
except BrokenPipeError as exc:
    print("told:", exc)
print("and goes on", flush=True)
import os
os._exit(5)
""",
    "its own classes after its last line": """
import atexit, dataclasses, pickle, threading, time
@dataclasses.dataclass
class Point:
    x: int
atexit.register(lambda: print(pickle.loads(pickle.dumps(Point(1)))))
threading.Thread(target=lambda: (time.sleep(0.2), print(pickle.loads(pickle.dumps(Point(2)))))).start()
""",
    "a hook for errors": "import sys\nsys.excepthook = lambda *told: print('mine', told[0], told[2].tb_lineno)\n1 / 0",
    "a data class": """
import dataclasses, pickle
@dataclasses.dataclass
class Point:
    x: int
print(pickle.loads(pickle.dumps(Point(3))))
""",
}  # fmt: skip


@pytest.fixture
async def preloaded() -> AsyncIterator[PreloadedInterpreter]:
    interpreter = PreloadedInterpreter()
    yield interpreter
    await interpreter.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "heavy.py").write_text(HEAVY)
    return tmp_path


async def run(
    words: list[str], preloaded: PreloadedInterpreter | None, modules: list[str], user: str | None = None
) -> EndedCommand:
    started = None if preloaded is None else lambda parts: preloaded.command(parts, modules, user)
    return await run_command(
        shlex.join(words),
        OpenAttempt("http://127.0.0.1:1", "sk-none"),
        model="main",
        messages=[{"role": "user", "content": "What?"}],
        payload={"query": "What?"},
        kept=None,
        user=user,
        started=started,
    )


def script(folder: Path, text: str) -> str:
    (file := folder / "agent.py").write_text(text)
    return str(file)


@pytest.mark.parametrize("name", AGENTS)
async def test_a_script_does_what_it_does_from_the_command_line(
    folder: Path, preloaded: PreloadedInterpreter, name: str
) -> None:
    words = [sys.executable, script(folder, AGENTS[name]), "{query}", "two words"]
    alone = await run(words, None, [])
    forked = await run(words, preloaded, ["heavy", "json.tool"])
    assert (forked.status, forked.stdout) == (alone.status, alone.stdout)
    assert forked.stderr.splitlines()[-1:] == alone.stderr.splitlines()[-1:]


async def test_a_module_does_what_it_does_from_the_command_line(preloaded: PreloadedInterpreter) -> None:
    words = ["env", "INDENT=2", sys.executable, "-m", "json.tool", "--help"]
    assert (await run(words, preloaded, ["argparse"])).stdout == (await run(words, None, [])).stdout != ""


async def test_modules_are_loaded_once_and_scripts_draw_different_numbers(
    folder: Path, preloaded: PreloadedInterpreter
) -> None:
    draw = "import heavy, numpy, random, uuid\nprint(numpy.random.rand(), random.random(), uuid.uuid4())"
    words = [sys.executable, script(folder, draw)]
    ended = await asyncio.gather(*(run(words, preloaded, ["heavy", "numpy.random", "uuid"]) for _ in range(8)))
    assert [one.status for one in ended] == [0] * 8, ended
    assert len({number for one in ended for number in one.stdout.split()}) == 24
    assert (folder / "loads").read_text() == "x"


async def test_a_script_behind_a_link_finds_its_own_modules(folder: Path, preloaded: PreloadedInterpreter) -> None:
    (folder / "mine.py").write_text("WORD = 'found'")
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "link.py").symlink_to(script(folder, "import mine\nprint(mine.WORD)"))
    assert (await run([sys.executable, str(folder / "elsewhere" / "link.py")], preloaded, ["heavy"])).stdout == "found"


async def test_a_cancelled_start_leaves_no_half_loaded_server(folder: Path, preloaded: PreloadedInterpreter) -> None:
    (folder / "slow.py").write_text("import time\ntime.sleep(3)")
    words = [sys.executable, script(folder, "import slow\nprint(1)")]
    first = asyncio.create_task(run(words, preloaded, ["slow"]))
    others = [asyncio.create_task(run(words, preloaded, ["slow"])) for _ in range(2)]
    await asyncio.sleep(1)
    first.cancel()
    await asyncio.wait([first])
    assert [(one.status, one.stdout) for one in await asyncio.gather(*others)] == [(0, "1")] * 2


async def test_a_process_that_a_package_starts_is_not_taken_for_a_script(
    folder: Path, preloaded: PreloadedInterpreter
) -> None:
    (folder / "helper.py").write_text("import subprocess\nsubprocess.Popen(['sleep', '0.5'])")
    words = [sys.executable, script(folder, "import helper, time\ntime.sleep(1)\nprint(1)")]
    for _ in range(2):
        assert (await run(words, preloaded, ["helper"])).stdout == "1"


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
from sampler.gateway.preload.interpreters import PreloadedInterpreter
from tests.sampler.gateway.test_preload import run
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
from sampler.gateway.preload.interpreters import PreloadedInterpreter
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


@pytest.mark.parametrize(
    ("words", "modules", "message"),
    [
        (["node", "agent.js"], ["heavy"], "found 'node' where PYTHON is expected"),
        (["env", "A=1"], ["heavy"], "found 'env A=1' where PYTHON is expected"),
        ([sys.executable, "-c", "print(1)"], ["heavy"], "found '-c' behind"),
        ([sys.executable], ["heavy"], "found '' behind"),
        ([sys.executable, "-m"], ["heavy"], "found '-m' behind"),
        ([sys.executable, "FOLDER/agent.py"], ["no_such_package"], "No module named 'no_such_package'"),
        (["env", "HEAVY=broken", sys.executable, "FOLDER/agent.py"], ["heavy"], "no licence"),
        (["env", "HEAVY=threads", sys.executable, "FOLDER/agent.py"], ["heavy"], "starts threads (telemetry)"),
        (["/no/python", "FOLDER/agent.py"], ["heavy"], "cannot run /no/python"),
    ],
)
async def test_what_cannot_be_preloaded_is_refused_with_the_reason(
    folder: Path, preloaded: PreloadedInterpreter, words: list[str], modules: list[str], message: str
) -> None:
    script(folder, "print(1)")
    with pytest.raises(ConfigError) as refused:
        await run([word.replace("FOLDER", str(folder)) for word in words], preloaded, modules)
    assert message in str(refused.value)
    assert "agent_preload" in str(refused.value)


@needs_root
async def test_the_scripts_of_another_user_are_that_users(folder: Path, preloaded: PreloadedInterpreter) -> None:
    words = [
        "/usr/bin/python3",
        script(folder, "import os, pwd\nprint(pwd.getpwuid(os.getuid()).pw_name, os.listdir())"),
    ]
    for path in (folder, *folder.parents[:3]):
        os.chmod(path, 0o755)
    assert (await run(words, preloaded, ["json"], OTHER_USER)).stdout.startswith(f"{OTHER_USER} ['")


async def test_an_episode_is_played_by_a_fork(store: Store, folder: Path) -> None:
    ask = """
import heavy, json, os, urllib.request
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
task = json.load(open(os.environ["TANDEM_TASK_FILE"]))
body = {"model": os.environ["OPENAI_MODEL"], "messages": task["messages"]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), headers)
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
"""
    options: dict[str, Any] = {"agent_command": shlex.join([sys.executable, script(folder, ask)])}
    record, _, _ = await played(
        store, ScriptedEngine(["<answer>4</answer>"]), None, **options, agent_preload=["heavy", "urllib.request"]
    )
    assert (record.status, record.score, record.error) == (RecordStatus.SCORED, 1.0, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agent_command": "python agent.py", "tool_sandbox": "bubblewrap"}, "a fork runs outside of the sandbox"),
        ({"agent": "agents:play"}, "without agent_command"),
    ],
)
def test_what_does_not_go_with_preloading_is_refused_at_the_start(options: dict[str, Any], message: str) -> None:
    needed = {"run": "r", "db_connection_string": "mongodb://h", "model_name_or_path": MODEL}
    with pytest.raises(ValidationError, match=message):
        SamplerConfig(**needed, sampler="sampler.gateway.agent_sampler:AgentSampler", agent_preload=["json"], **options)


def left_in(folder: Path) -> list[Path]:
    return list(folder.glob("tandem-preloaded-*"))


async def processes_of(file: Path) -> list[psutil.Process]:
    """Those whose ids a script wrote there."""

    def written() -> list[str]:
        return file.read_text().split() if file.exists() else []

    async with asyncio.timeout(60):
        while len(await asyncio.to_thread(written)) < 2:  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.05)
    return [psutil.Process(int(pid)) for pid in written()]
