"""An agent's command in a sandbox: it plays as without one, meets its limits, and sees and leaves nothing else."""

import asyncio
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

from sampler.config import SamplerConfig
from sampler.episode import play
from sampler.gateway import kept_files
from sampler.gateway.agent_sampler import AgentSampler
from sampler.gateway.agent_sandbox import AgentSandbox, files_named_in
from sampler.gateway.child import run_command
from sampler.gateway.kept_files import copy_out
from sampler.gateway.server import OpenAttempt
from sampler.mcp_docker.sandbox import (
    IsolationLevel,
    Launch,
    containers,
    discard,
    landlock,
    new_folder,
    reap_left_over,
    start,
)
from sampler.mcp_docker.sandbox.levels import problem
from shared.documents.states import RecordStatus, Termination
from shared.store import Store
from tests.conftest import ROOT
from tests.sampler.episodes import MODEL, ended
from tests.sampler.escapes import IMAGE
from tests.sampler.gateway.agents import ScriptedEngine, an_episode
from tests.sampler.gateway.test_agent_sampler import COMMAND
from tests.sampler.mcp_docker.gateways import until_gone
from tests.sampler.sandbox.starting import LOCAL_LEVELS, PATIENCE_S, needs

ONE = ["<answer>4</answer>"]
AGENT = """
import httpx, json, os, subprocess, sys
task = json.load(open(os.environ["TANDEM_TASK_FILE"]))
assert task["prompt"] == sys.stdin.read()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
with httpx.Client(base_url=os.environ["OPENAI_BASE_URL"], headers=headers, timeout=60) as client:
    reply = client.post("/chat/completions", json={"model": os.environ["OPENAI_MODEL"], "messages": task["messages"]})
print("said", reply.raise_for_status().json()["choices"][0]["message"]["content"])
print("in", os.getcwd() == os.environ["HOME"], sorted(os.listdir(".")))
print("and errors", file=sys.stderr)
child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
open("made", "w").write(str(os.getpid()))
"""
# What it finds, as one line of JSON: names of what it could do and should not.
PROBES = """
import json, os, sys
done = []
def tried(name, act):
    try:
        if act():
            done.append(name)
    except OSError:
        pass
def read(path):
    return lambda: open(path).read()
def write(path):
    return lambda: open(path, "w").write("x")
readable = sys.argv[1]
own, secret, other = json.load(open(readable))
tried("reads a file", read(secret))
tried("reads another attempt", read(other + "/note"))
tried("lists another attempt", lambda: os.listdir(other))
tried("writes into another attempt", write(other + "/made"))
tried("lists all attempts", lambda: len(os.listdir(os.path.dirname(os.getcwd()))) > 1)
try:
    write(os.path.dirname(secret) + "/made")()  # may succeed in a /tmp of its own
except OSError:
    pass
tried("writes what it may read", write(readable))
tried("writes below /usr", write("/usr/made"))
tried("reads users", read("/etc/passwd"))
for pid in [own, *range(1, 5000)]:
    tried("reads an environment", lambda: "PROBED_SECRET" in open(f"/proc/{pid}/environ").read())
tried("has the sampler's environment", lambda: "PROBED_SECRET" in os.environ)
tried("signals the sampler", lambda: os.kill(int(own), 0) is None)
print(json.dumps(sorted(set(done))))
"""
MANY = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        kept = bytearray(b"x" * (50 << 20))
        time.sleep(600)
os.wait()
raise SystemExit(1)
"""
LIMITS = {
    "memory_mb": ({"memory_mb": 100}, "kept = [bytearray(50 << 20) for _ in range(10)]"),
    "memory_mb of many": ({"memory_mb": 100}, MANY),
    "output_mb": ({"output_mb": 1}, "while True: print('x' * 10000)"),
    "processes": (
        {"processes": 8},
        "import subprocess, time\nchildren = [subprocess.Popen(['sleep', '600']) for _ in range(20)]\ntime.sleep(600)",
    ),
    "folder_mb": ({"folder_mb": 2}, "import time\nopen('large', 'wb').write(bytes(4 << 20))\ntime.sleep(600)"),
    "file_mb": ({"file_mb": 1}, "open('large', 'wb').write(bytes(4 << 20))"),
    "open_files": ({"open_files": 20}, "kept = [open('/dev/null') for _ in range(50)]"),
    "cpu_s": ({"cpu_s": 1}, "while True: pass"),
}
levels = pytest.mark.parametrize("level", LOCAL_LEVELS)
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of this test's sandboxes."""
    tmp_path_factory.getbasetemp()  # pytest's own is made when it is first asked for, and would be in this one
    with tempfile.TemporaryDirectory(prefix="tandem-test-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield folder  # type: ignore[misc]


@asynccontextmanager
async def isolated(
    store: Store, level: str, script: Path, *arguments: str, **options: Any
) -> AsyncIterator[AgentSampler]:
    """An episode of the script. At its end nothing of it is left."""
    command = " ".join([sys.executable, str(script), *arguments])
    engine = options.pop("engine", None) or ScriptedEngine(ONE)
    given = {"agent_command": command, "agent_isolation": str(level)} | options
    async with an_episode(store, engine, None, **given) as sampler:
        sandbox = sampler.resources.agent_sandbox
        await sandbox.open(sampler.config)
        state = sandbox._state
        assert state is not None
        try:
            yield sampler
            assert os.listdir(state) == [".lock"]
        finally:
            await sandbox.close()


def script_of(folder: Path, text: str) -> Path:
    (file := folder / "agent.py").write_text(text)
    return file


@levels
async def test_a_command_plays_as_without_a_sandbox(store: Store, tmp_path: Path, level: IsolationLevel) -> None:
    needs(level)
    async with isolated(store, level, script_of(tmp_path, AGENT), agent_folder=tmp_path / "kept") as sampler:
        await play(sampler)
        record, _, dispatches = await ended(store, sampler)
    assert record.error is None
    assert (record.score, record.termination, len(dispatches)) == (1.0, Termination.ANSWERED, 1)
    kept = tmp_path / "kept" / record.id
    assert (kept / "stdout.txt").read_text() == "said <answer>4</answer>\nin True ['task.json']\n"
    assert (kept / "stderr.txt").read_text() == "and errors\n"
    assert sorted(os.listdir(kept)) == ["made", "stderr.txt", "stdout.txt", "task.json"]
    assert {file.stat().st_uid for file in (kept, *kept.iterdir())} == {os.getuid()}


REACHED = """
import os, socket, sys, threading, urllib.request
import httpx
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
def listed():
    with httpx.Client(base_url=os.environ["OPENAI_BASE_URL"], headers=headers, timeout=60) as client:
        for _ in range(3):
            client.get("/models").raise_for_status()
threads = [threading.Thread(target=listed) for _ in range(20)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for kind, address in (("tcp", ("127.0.0.1", int(sys.argv[1]))), ("outside", ("192.0.2.1", 80)), ("abstract", sys.argv[2])):
    try:
        family = socket.AF_UNIX if kind == "abstract" else socket.AF_INET
        with socket.socket(family) as other:
            other.settimeout(10)
            other.connect(chr(0) + address if kind == "abstract" else address)
        print("reached", kind)
    except OSError as exc:
        print("met", kind)
print("children", os.path.exists("/proc/self/task") and open(f"/proc/self/task/{os.getpid()}/children").read().strip())
"""


@pytest.mark.parametrize("network", ["machine", "gateway"])
async def test_a_command_reaches_the_machines_network_or_the_gateway_alone(
    store: Store, tmp_path: Path, network: str
) -> None:
    needs(IsolationLevel.BUBBLEWRAP)
    script = script_of(tmp_path, REACHED + AGENT)
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0tandem-test-{os.getpid()}")
        abstract.listen()
        arguments = (str(listening.getsockname()[1]), f"tandem-test-{os.getpid()}")
        options = {"agent_network": network, "agent_folder": tmp_path / "kept"}
        async with isolated(store, "bubblewrap", script, *arguments, **options) as sampler:
            await play(sampler)
            record, _, dispatches = await ended(store, sampler)
    assert record.error is None
    assert (record.score, len(dispatches)) == (1.0, 1)
    said = (tmp_path / "kept" / record.id / "stdout.txt").read_text().splitlines()
    met = "met" if network == "gateway" else "reached"
    assert said[:4] == [f"{met} tcp", "met outside", f"{met} abstract", "children "]


LEAVES = """
import httpx, os, time
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": "?"}]}
try:
    httpx.post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json=body, headers=headers, timeout=2)
except httpx.ReadTimeout:
    time.sleep(3600)
"""


async def test_a_client_behind_the_relay_that_leaves_aborts_its_request(store: Store, tmp_path: Path) -> None:
    needs(IsolationLevel.BUBBLEWRAP)
    engine = ScriptedEngine(ONE, delay_s=3600)
    options = {"engine": engine, "agent_network": "gateway"}
    async with isolated(store, "bubblewrap", script_of(tmp_path, LEAVES), **options) as sampler:
        playing = asyncio.create_task(play(sampler))
        async with asyncio.timeout(PATIENCE_S):
            await engine.aborted.wait()
        assert not playing.done()
        playing.cancel()
        await asyncio.wait([playing])


@levels
async def test_a_command_sees_neither_other_attempts_nor_the_samplers_secrets(
    store: Store, tmp_path: Path, level: IsolationLevel, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(level)
    if level is IsolationLevel.PROCESS and landlock.abi() == 0:
        pytest.skip("process: this kernel lacks Landlock, so the user's rights are what keeps files")
    monkeypatch.setenv("PROBED_SECRET", "s3cret")
    (secret := tmp_path / "secret").write_text("s3cret")
    (data := tmp_path / "data").mkdir()
    options = {"agent_readable": [data], "agent_folder": tmp_path / "kept"}
    async with isolated(store, level, script_of(tmp_path, PROBES), str(data / "places"), **options) as sampler:
        state = sampler.resources.agent_sandbox._state
        assert state is not None
        other = new_folder(state)
        (other / "note").write_text("another's")
        (data / "places").write_text(json.dumps([os.getpid(), str(secret), str(other)]))
        await play(sampler)
        record, _, _ = await ended(store, sampler)
        await discard(other)
    found = json.loads((tmp_path / "kept" / record.id / "stdout.txt").read_text())
    assert found == []
    assert not (tmp_path / "made").exists()


@levels
@pytest.mark.parametrize("name", LIMITS)
async def test_a_limit_ends_the_attempt_and_is_named(
    store: Store, tmp_path: Path, level: IsolationLevel, name: str
) -> None:
    needs(level)
    limits, code = LIMITS[name]
    async with isolated(store, level, script_of(tmp_path, code), agent_limits=limits) as sampler:
        await play(sampler)
        record, _, _ = await ended(store, sampler)
    assert (record.status, record.termination, record.score) == (RecordStatus.FAILED, Termination.AGENT_CRASHED, None)
    assert "a limit of agent_limits" in (record.error or "")
    assert name.split()[0] in (record.error or "").partition("agent_limits")[2].partition(";")[0]


@pytest.mark.skipif("DOCKER_HOST" not in os.environ, reason="DOCKER_HOST is not set; needs an engine with a test image")
@pytest.mark.parametrize("limits", [{}, {"memory_mb": 64}])
async def test_a_container_plays_and_meets_its_limits(store: Store, tmp_path: Path, limits: dict[str, int]) -> None:
    needs(IsolationLevel.CONTAINER)
    text = COMMAND + ("\nkept = bytearray(b'x') * (200 << 20)" if limits else "")
    script = script_of(tmp_path, text)
    options: dict[str, Any] = {"agent_readable": [script], "agent_folder": tmp_path / "kept", "agent_limits": limits}
    options |= {"agent_command": f"python3 {script} {{query}}", "agent_container": {"image": IMAGE}}
    async with isolated(store, "container", script, **options) as sampler:
        await play(sampler)
        record, _, dispatches = await ended(store, sampler)
    assert len(dispatches) == 1
    if not limits:
        said = (tmp_path / "kept" / record.id / "stdout.txt").read_text()
        assert said == "said <answer>4</answer>\nsecrets []\n"
    assert (tmp_path / "kept" / record.id / "stderr.txt").read_text() == ""
    assert record.score == (None if limits else 1.0)
    assert ("memory_mb, which is 64" in (record.error or "")) == bool(limits)


@levels
async def test_a_command_ends_with_its_episodes_time(store: Store, tmp_path: Path, level: IsolationLevel) -> None:
    needs(level)
    script = script_of(tmp_path, "import time\nprint('begun', flush=True)\ntime.sleep(3600)")
    others = set(psutil.Process().children())
    async with isolated(store, level, script, episode_timeout_s=5) as sampler:
        await play(sampler)
        record, _, _ = await ended(store, sampler)
    assert (record.status, record.termination) == (RecordStatus.FAILED, Termination.TIME_LIMIT)
    assert set(psutil.Process().children()) <= others


STUBBORN = "trap '' TERM INT HUP; sleep 600 & setsid sleep 600 & echo ready > ready; while :; do sleep 600; done"
SAMPLER = """
import asyncio, sys
from tests.sampler.gateway.test_agent_isolation import hangs
asyncio.run(hangs(sys.argv[1]))
"""


def configured(**options: Any) -> SamplerConfig:
    values = {"run": "r", "db_connection_string": "x", "model_name_or_path": MODEL} | options
    return SamplerConfig.model_validate(values | {"sampler": "sampler.gateway.agent_sampler:AgentSampler"})


async def hangs(level: str) -> None:
    """A sampler with two commands that do not end."""
    command = f'/bin/sh -c "{STUBBORN}"'
    config = configured(agent_command=command, agent_isolation=level, agent_container={"image": IMAGE})
    sandbox = AgentSandbox()
    await sandbox.open(config)
    assert config.agent_command is not None
    given = {"model": "main", "messages": [{"content": "?"}], "payload": {"query": "?"}, "kept": None}
    attempt = OpenAttempt("http://127.0.0.1:1", "sk-none")
    await asyncio.gather(
        *(run_command(config.agent_command, attempt, **given, isolated=sandbox) for _ in range(2))  # type: ignore[arg-type]
    )


@levels
async def test_a_task_cannot_name_a_file_to_be_read(tmp_path: Path, level: IsolationLevel) -> None:
    needs(level)
    (secret := tmp_path / "secret").write_text("s3cret")
    sandbox = AgentSandbox()
    await sandbox.open(configured(agent_command="/bin/cat {query}", agent_isolation=level))
    given = {"model": "main", "messages": [{"content": "?"}], "payload": {"query": str(secret)}, "kept": None}
    attempt = OpenAttempt("http://127.0.0.1:1", "sk-none")
    tried = await run_command("/bin/cat {query}", attempt, **given, isolated=sandbox)  # type: ignore[arg-type]
    named = await run_command(f"/bin/cat {secret}", attempt, **given, isolated=sandbox)  # type: ignore[arg-type]
    await sandbox.close()
    assert (tried.status, tried.stdout) == (1, "")
    assert (named.status, named.stdout) == (0, "s3cret")


@pytest.mark.parametrize("level", IsolationLevel)
@pytest.mark.parametrize("wardens_too", [False, True])
async def test_a_killed_sampler_leaves_nothing_after_the_next_ones_start(
    temporary: str, level: IsolationLevel, wardens_too: bool
) -> None:
    needs(level)
    if level is IsolationLevel.CONTAINER and "DOCKER_HOST" not in os.environ:
        pytest.skip("container: DOCKER_HOST is not set; needs an engine with a test image")
    base = Path(temporary) / f"tandem-{os.getuid()}" / "agents"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", SAMPLER, level], cwd=ROOT, env=environment) as sampler:  # noqa: ASYNC220
        async with asyncio.timeout(PATIENCE_S):
            while len(list(base.glob("0/*/ready"))) < 2:
                assert sampler.poll() is None
                await asyncio.sleep(0.05)
        alive = psutil.Process(sampler.pid).children(recursive=True)
        wardens = psutil.Process(sampler.pid).children()
        assert len(alive) >= (4 if level is IsolationLevel.CONTAINER else 8)
        living = AgentSandbox()
        config = configured(agent_command="true", agent_isolation="process")
        await living.open(config)  # of a second sampler, while the first one lives
        assert living._state == base / "1"
        sampler.kill()
        for warden in wardens if wardens_too else ():
            warden.kill()
        await asyncio.to_thread(sampler.wait, PATIENCE_S)
    next_one = AgentSandbox()
    await next_one.open(config)
    await until_gone(alive)
    assert await containers.left_over(base / "0") == []
    assert next_one._state == base / "0"
    assert sorted(str(path.relative_to(base)) for path in base.rglob("*")) == ["0", "0/.lock", "1", "1/.lock"]
    await living.close()
    await next_one.close()


async def test_a_level_that_is_not_there_is_refused_at_the_samplers_start(store: Store, tmp_path: Path) -> None:
    if problem(IsolationLevel.PROCESS):
        pytest.skip(problem(IsolationLevel.PROCESS))
    client = store.database.client
    host, port = (await client.address) or ("", 0)
    command = (
        *(sys.executable, "-m", "sampler", "--run", store.run, "--db_connection_string", f"mongodb://{host}:{port}"),
        *("--model_name_or_path", str(MODEL), "--sampler", "sampler.gateway.agent_sampler:AgentSampler"),
        *("--agent_command", "true", "--agent_isolation", "container"),
    )
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    started = await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert started.returncode == 2, started.stderr
    assert "agent_isolation: container does not work on this machine: docker is not on the PATH" in started.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"agent_command": "python a.py", "agent_preload": ["json"]}, "a fork runs outside of the sandbox"),
        ({}, "without agent_command, which it isolates"),
        ({"agent_command": "a", "agent_network": "gateway"}, "expected bubblewrap"),
        ({"agent_command": "a", "agent_limits": {"memory": 1}}, "agent_limits.memory"),
        ({"agent_command": "a", "agent_limits": {"memory_mb": 0}}, "agent_limits.memory_mb"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        configured(agent_isolation="process", **options)
    assert said in str(refused.value)


def test_what_a_command_names_may_be_read_with_its_virtual_environment(tmp_path: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").write_text("home = /opt/python/bin\nversion = 3.11\n")
    (python := tmp_path / "venv" / "bin" / "python").write_text("")
    (script := tmp_path / "agent.py").write_text("")
    words = ("/usr/bin/env", "A=/etc/shadow", str(python), str(script), "{query}", "/no/such")
    found = files_named_in(words)
    assert found == [Path("/usr/bin/env"), python, tmp_path / "venv", Path("/opt/python"), script]


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """What a command left."""
    (tmp_path / "left" / "deep" / "er").mkdir(parents=True)
    return tmp_path / "left"


def test_files_are_kept_and_neither_links_nor_rights_reach_further(left: Path, tmp_path: Path) -> None:
    (secret := tmp_path / "secret").write_text("s3cret")
    (left / "deep" / "er" / "file").write_text("text")
    (tool := left / "tool").write_text("#!/bin/sh")
    tool.chmod(0o6755)
    (left / "link").symlink_to(secret)
    (left / "stdout.txt").symlink_to(secret)
    (left / "folder").symlink_to(tmp_path)
    os.mkfifo(left / "pipe")
    (left / "closed").mkdir()
    (left / "closed" / "file").write_text("closed")
    (left / "closed" / "file").chmod(0)
    (left / "closed").chmod(0)
    (kept := tmp_path / "kept").mkdir()
    (kept / "stdout.txt").write_text("ours")
    copy_out(left, kept)
    assert (kept / "deep" / "er" / "file").read_text() == "text"
    assert stat.S_IMODE((kept / "tool").stat().st_mode) & 0o7100 == 0o100
    assert (kept / "link").is_symlink()
    assert (kept / "folder").is_symlink()
    assert (kept / "stdout.txt").read_text() == "ours"
    assert not (kept / "pipe").exists()
    assert (kept / "closed" / "file").read_text() == "closed"
    assert secret.read_text() == "s3cret"


@pytest.mark.parametrize("how", ["bytes", "holes", "entries", "levels"])
def test_a_directory_that_is_too_large_is_not_kept(
    left: Path, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_files, "MAX_KEPT_BYTES", 1 << 20)
    if how == "levels":
        deep = left.joinpath(*["d"] * 150)
        deep.mkdir(parents=True)
    for number in range(300 if how == "entries" else 1):
        with (left / str(number)).open("wb") as file:
            file.write(bytes(2 << 20 if how == "bytes" else 0))
            file.truncate(64 << 20 if how == "holes" else 2 << 20 if how == "bytes" else 0)
    (kept := tmp_path / "kept").mkdir()
    copy_out(left, kept)
    assert not kept.exists()


def test_paths_that_are_too_long_do_not_fail_the_episode(
    left: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (left / "file").write_text("text")
    monkeypatch.chdir(left / "deep")
    for _ in range(30):  # 30 * 201 bytes, of 4,096
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
    (kept := tmp_path / "kept").mkdir()
    copy_out(left, kept)
    assert (kept / "file").read_text() == "text"
    os.chdir(tmp_path)
    shutil.rmtree(left)
    shutil.rmtree(kept)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has users for sessions")
async def test_reaping_spares_a_living_session_that_has_the_same_user(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "living")
    process = await start(Launch(("sleep", "600"), folder), IsolationLevel.PROCESS)
    (left := tmp_path / "killed" / "left").mkdir(parents=True)
    os.chown(left, folder.stat().st_uid, -1)
    found = await reap_left_over(tmp_path / "killed")
    assert (found.processes, found.folders) == (0, 1)
    assert not left.exists()
    assert process.returncode is None
    os.kill(process.pid, signal.SIGTERM)
    await process.stop()
    await discard(folder)
