"""An agent's command in a sandbox: it plays as without one, and reaches and sees nothing else."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sampler.core.episode.episode import play
from sampler.gateway import agent_sandbox
from sampler.gateway.agent_sandbox import AgentSandbox, files_named_in
from sampler.gateway.child import run_command
from sampler.gateway.kept_files import copy_out
from sampler.gateway.server import OpenAttempt
from shared.documents.states import Termination
from shared.sandbox import (
    IsolationLevel,
    discard,
    landlock,
    new_folder,
)
from shared.sandbox.levels import problem
from shared.store import Store
from tests.conftest import ROOT
from tests.sampler.episodes import MODEL, ended
from tests.sampler.gateway.agents import ScriptedEngine
from tests.sampler.gateway.isolated import ONE, configured, isolated, levels, script_of
from tests.shared.sandbox.starting import PATIENCE_S, needs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("temporary")]


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


async def test_copying_files_out_is_not_the_agents_time(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50,000 small files take seconds, in which the episode's time-out is not due."""
    needs(IsolationLevel.PROCESS)
    due: list[float | None] = []

    def observed(folder: Path, kept: Path) -> None:
        due.append(sampler._clock.due)
        copy_out(folder, kept)

    monkeypatch.setattr(agent_sandbox, "copy_out", observed)
    options = {"agent_folder": tmp_path / "kept"}
    async with isolated(store, IsolationLevel.PROCESS, script_of(tmp_path, AGENT), **options) as sampler:
        await play(sampler)
        record, _, _ = await ended(store, sampler)
    assert due == [None]
    assert (record.error, record.score) == (None, 1.0)
    assert (tmp_path / "kept" / record.id / "made").exists()


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
        state = sampler.resources.opened.of(AgentSandbox)._state
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
async def test_a_task_cannot_name_a_file_to_be_read(tmp_path: Path, level: IsolationLevel) -> None:
    needs(level)
    (secret := tmp_path / "secret").write_text("s3cret")
    sandbox = AgentSandbox(configured(agent_command="/bin/cat {query}", agent_isolation=level))
    await sandbox.open()
    given = {"model": "main", "messages": [{"content": "?"}], "payload": {"query": str(secret)}, "kept": None}
    attempt = OpenAttempt("http://127.0.0.1:1", "sk-none")
    tried = await run_command("/bin/cat {query}", attempt, **given, isolated=sandbox)
    named = await run_command(f"/bin/cat {secret}", attempt, **given, isolated=sandbox)
    await sandbox.close()
    assert (tried.status, tried.stdout) == (1, "")
    assert (named.status, named.stdout) == (0, "s3cret")


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
        ({}, "agents.command.agent_command\n  Field required"),
        ({"agent_command": "a", "agent_network": "gateway"}, "expected bubblewrap"),
        (
            {
                "agent_isolation": "bubblewrap",
                "agent_command": "a",
                "agent_network": "gateway",
                "gateway_host": "0.0.0.0",
            },
            "expected 127.0.0.1",
        ),
        ({"agent_folder": "/tmp"}, "agents.command.agent_command\n  Field required"),
        ({"agent_command": "a", "agent_container": {"image": "a"}}, "without agent_isolation = container"),
        ({"agent_command": "a", "agent_limits": {"memory": 1}}, "agent_limits.memory"),
        ({"agent_command": "a", "agent_limits": {"memory_mb": 0}}, "agent_limits.memory_mb"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        configured(**{"agent_isolation": "process"} | options)
    assert said in str(refused.value)


@pytest.mark.parametrize("home", ["/bin", "/", "/home/me/bin"])
def test_what_a_command_names_may_be_read_with_its_virtual_environment(tmp_path: Path, home: str) -> None:
    """Its `home` may be a link, or anything: it opens nothing."""
    (base := tmp_path / "base" / "bin").mkdir(parents=True)
    (base.parent / "lib" / "python3.11").mkdir(parents=True)
    (base / "python3.11").write_text("")
    (bin := tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").write_text(f"home = {home}\nversion = 3.11\n")
    (python := bin / "python").symlink_to(base / "python3.11")
    (script := tmp_path / "agent.py").write_text("")
    words = ("/usr/bin/env", "A=/etc/shadow", str(python), str(script), "{query}", "/no/such")
    found = files_named_in(words)
    base_files = [base / "python3.11", base.parent / "lib"]
    assert found == [Path("/usr/bin/env"), python, tmp_path / "venv", *base_files, script]
