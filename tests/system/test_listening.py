"""By default every program listens on loopback alone: what other machines shall reach, they are told of by a setting."""

import argparse
import asyncio
import ipaddress
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import typer.main

from sampler.engine.local.__main__ import _parser
from scripts.settings_page import SERVICES
from shared.configuration.sections import settings_of
from shared.names import LOOPBACK_HOSTS
from shared.processes.mongod import Mongod
from shared.store import Store
from tandem import app
from tests.system.processes import MODEL, PATIENCE_S, PATIENT, ROOT, launched
from trainer.launch import LOOPBACK

pytestmark = pytest.mark.timeout(900)
ADDRESSES = ("host", "bind_ip", "engine_host", "gateway_host")
OF_OTHERS = {"health": "--host"}  # names the host of a worker; it listens nowhere
WORLD = """
from sampler.environments import Environment, Step

class Even(Environment):
    def start(self, index, task):
        return Step([{"role": "user", "content": "?"}])

    def interact(self, replies):
        return Step(status="completed", reward=1.0)
"""


def listening(pid: int) -> list[tuple[str, str]]:
    """(program, address:port) of a process and its descendants: TCP that listens, and UDP that anybody may send to."""
    found = []
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        try:
            name, sockets = process.name(), process.net_connections(kind="inet")
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # ended, or hidden from an ordinary user's processes
            continue
        for one in sockets:
            if one.status == psutil.CONN_LISTEN or (one.status == psutil.CONN_NONE and one.laddr and not one.raddr):
                found.append((name, f"{one.laddr.ip} {one.laddr.port}"))
    return found


def elsewhere(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [one for one in found if not ipaddress.ip_address(one[1].split()[0]).is_loopback]


@pytest.fixture
def world(tmp_path: Path) -> str:
    (tmp_path / "worlds.py").write_text(WORLD)
    return f"even={tmp_path / 'worlds.py'}:Even"


@pytest.mark.slow
@pytest.mark.thorough
def test_a_launch_on_one_machine_listens_on_loopback_alone_and_ctrl_c_leaves_no_traceback(run: str, world: str) -> None:
    command = [sys.executable, "-m", "tandem.launch", run, "--method", "minirl", "--environments", world]
    command += ["--num_processes", "2"]
    launch = subprocess.Popen(command, cwd=ROOT, env=os.environ | PATIENT, stdout=subprocess.DEVNULL)
    try:
        log, deadline = ROOT / "logs" / f"{run}_train_0.log", time.monotonic() + PATIENCE_S
        while not (log.is_file() and "trainer start=1" in log.read_text()):
            assert launch.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        found = [one for pid in launched(run) for one in listening(pid)]
        launch.send_signal(signal.SIGINT)
        assert launch.wait(PATIENCE_S) == 128 + signal.SIGINT
    finally:
        launch.kill()
        launch.wait()
    assert elsewhere(found) == []
    assert {"mongod", "pt_elastic"} < {name for name, _ in found}
    assert len(set(found)) >= 6, "a database, a tool server, environments, an engine, a rendezvous and its peers"
    logs = {path.name: path.read_text() for path in (ROOT / "logs").glob(f"{run}_*.log")}
    assert [name for name, text in logs.items() if "Traceback" in text] == []


@contextmanager
def running(words: list[str], folder: Path, **environment: str) -> Iterator[int]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=folder, env=os.environ | environment, stdout=log, stderr=log
        )
    try:
        yield process.pid
    finally:
        for one in [*psutil.Process(process.pid).children(recursive=True), process]:
            one.kill()
        process.wait()


# {program: its words}; {run}, {folder} and {world} are filled in.
PROGRAMS = {
    "view": "-m tandem view {run} --port 0",
    "metrics": "-m tandem metrics {run} --port 0",
    "mongod": "-m tandem mongod --folder {folder}/data",
    "gateway": "-m sampler.gateway --run {run} --model_name_or_path {model} --gateway_port 0",
    "mcp_docker": "-m sampler.mcp_docker --servers {folder}/servers.json --port 0 --state_folder {folder}/state",
    "environments": "-m sampler.environments --run {run} --environments {world} --port 0",
    "tools": "{root}/assets/example/tool_server.py --transport streamable-http --port 0",
    "engine": "-m sampler.engine.local --model-path {model} --port 0",
}


HIDES_ITS_SOCKETS = ("gateway", "mcp_docker", "environments")  # from the other processes of an ordinary user
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may read the open sockets of a service that hides them"
)


@pytest.mark.parametrize(
    "program", [pytest.param(name, marks=needs_root if name in HIDES_ITS_SOCKETS else ()) for name in PROGRAMS]
)
async def test_a_program_started_by_hand_listens_on_loopback_alone(
    program: str, store: Store, mongod: Mongod, tmp_path: Path, world: str
) -> None:
    (tmp_path / "servers.json").write_text('{"mcpServers": {"a": {"command": "true"}}}')
    values = {"run": store.run, "folder": tmp_path, "world": world, "model": MODEL, "root": ROOT}
    words = [word.format(**values) for word in PROGRAMS[program].split()]
    with running(words, tmp_path, DB_CONNECTION_STRING=mongod.connection_string, PYTHONPATH=str(ROOT)) as pid:
        deadline = time.monotonic() + PATIENCE_S
        while not (found := listening(pid)):
            assert psutil.pid_exists(pid), (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            await asyncio.sleep(0.1)
    assert elsewhere(found) == []


def test_every_setting_that_says_where_a_program_listens_is_loopback_by_default() -> None:
    defaults = {
        f"{kind.section}.{name}": setting.field.default
        for kind in SERVICES
        for name, setting in settings_of(kind).items()
        if name in ADDRESSES or name == "metrics_address"
    }
    assert len(defaults) >= 6
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]  # asyncio and typer do not declare it
        for option in command.params:
            if option.name in ADDRESSES and OF_OTHERS.get(name) not in option.opts:
                defaults[f"tandem {name}"] = option.default
    assert {"tandem view", "tandem metrics", "tandem mongod"} <= defaults.keys()
    engine: argparse.ArgumentParser = _parser()
    defaults["engine"] = engine.get_default("host")
    assert {name: value for name, value in defaults.items() if value not in (None, *LOOPBACK_HOSTS)} == {}
    assert LOOPBACK in LOOPBACK_HOSTS
