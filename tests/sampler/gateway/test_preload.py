"""An agent's script as a fork of a process that has its packages: it must not be able to tell."""

import asyncio
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sampler.gateway.preload import PreloadedInterpreter
from sampler.settings import SamplerConfig
from shared.documents.states import RecordStatus
from shared.errors import ConfigError
from shared.store import Store
from tests.sampler.episodes import MODEL
from tests.sampler.gateway.agents import ScriptedEngine, played
from tests.sampler.gateway.preloading import run, script
from tests.sampler.test_secrets import OTHER_USER, needs_root

AGENTS = {
    "all that a script sees": """
import heavy, os, pathlib, sys
print(__name__, __file__, sys.argv, sys.path[0], os.environ["OPENAI_MODEL"], "DB_CONNECTION_STRING" in os.environ)
print(sys.stdin.read(), os.listdir("."), pathlib.Path.cwd().name.startswith("tandem-command-"))
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


async def test_a_process_that_a_package_starts_is_not_taken_for_a_script(
    folder: Path, preloaded: PreloadedInterpreter
) -> None:
    (folder / "helper.py").write_text("import subprocess\nsubprocess.Popen(['sleep', '0.5'])")
    words = [sys.executable, script(folder, "import helper, time\ntime.sleep(1)\nprint(1)")]
    for _ in range(2):
        assert (await run(words, preloaded, ["helper"])).stdout == "1"


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
        ({"agent": "agents:play"}, r"agents\.command\.agent_command\n  Field required"),
    ],
)
def test_what_does_not_go_with_preloading_is_refused_at_the_start(options: dict[str, Any], message: str) -> None:
    needed = {"run": "r", "db_connection_string": "mongodb://h", "model_name_or_path": MODEL}
    with pytest.raises(ValidationError, match=message):
        SamplerConfig(**needed, sampler="sampler.gateway.agent_sampler:AgentSampler", agent_preload=["json"], **options)
