"""A keeper that starts the real SGLang or vLLM: it restarts it after a crash, and leaves no process behind.

(The same for the local engine: tests/system/test_kills.py.)
"""

import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psutil
import pytest

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.errors import KeyRefused
from shared.documents.states import ServiceStatus
from shared.processes.mongod import Mongod
from shared.store import Store
from tandem.launch import commands
from tandem.launch.settings import LaunchConfig
from tests.contract.engines import MODEL, ROOT, SCRIPTS, START_S, skip_without, started

pytestmark = pytest.mark.timeout(2 * START_S)
Until = Callable[..., Awaitable[None]]
KEY = "sk-very-secret"
SERVERS = {"sglang": "sglang.launch_server", "vllm": "sampler.engine.vllm"}


def server_of(keeper: "subprocess.Popen[bytes]") -> int:
    """The pid of the one server among the keeper's descendants."""
    (server,) = (p for p in psutil.Process(keeper.pid).children(recursive=True) if {*SERVERS.values()} & {*p.cmdline()})
    return server.pid


@pytest.fixture(params=["sglang", "vllm"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def keeper(kind: str, mongod: Mongod, store: Store, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A keeper as the launcher starts it with ENGINE=kind, and an engine with an API key; its log is keeper.log."""
    skip_without(kind)
    launch = LaunchConfig(run=store.run, engine=kind, model=MODEL)  # type: ignore[arg-type]  # text, as a variable has it
    command = commands.keeper(launch, None)
    command[-1] += " --api-key {api_key}"
    with (tmp_path / "keeper.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--start_timeout_s", str(START_S), "--engine_api_key_var", "TESTS_ENGINE_KEY"],
            cwd=ROOT,
            env={**os.environ, **commands.with_database("keeper", mongod.connection_string), "TESTS_ENGINE_KEY": KEY},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    yield process
    process.kill()  # its engine ends with it
    process.wait(60)


async def assert_demands_its_key(url: str) -> None:
    """(The same for the local engine: test_api_key.py.)"""
    async with EngineClient(api_key=KEY) as client:
        found = await client.generate(url, [5, 6, 7], {"max_new_tokens": 2, "ignore_eos": True}, rid="with-its-key")
    assert len(found.output_ids) == 2
    for key in (None, "another"):
        async with EngineClient(api_key=key) as client:
            with pytest.raises(KeyRefused):
                await client.generate(url, [5, 6, 7], {"max_new_tokens": 2}, rid="without-its-key")


@pytest.mark.thorough
@pytest.mark.slow
async def test_a_killed_engine_is_restarted_and_none_of_its_processes_outlives_its_keeper(
    kind: str, keeper: "subprocess.Popen[bytes]", store: Store, until: Until, tmp_path: Path
) -> None:
    async def serves() -> bool:
        assert keeper.poll() is None, (tmp_path / "keeper.log").read_text()[-3000:]
        services = await store.services.live("main")
        return [(s.status, s.version, s.kind) for s in services] == [(ServiceStatus.UP, 0, kind)]

    async def is_down() -> bool:
        return not await serves()

    await until(serves, START_S)
    (service,) = await store.services.live("main")
    await assert_demands_its_key(service.url)
    engine = server_of(keeper)
    os.kill(engine, signal.SIGKILL)
    await until(is_down)
    await until(serves, START_S)
    assert server_of(keeper) != engine
    processes = psutil.Process(keeper.pid).children(recursive=True)
    assert len(processes) > 2, "the guard, the server and its own"
    keeper.terminate()

    async def all_gone() -> bool:
        return not any(process.is_running() for process in processes)

    await until(all_gone)
    assert keeper.wait() == 0, (tmp_path / "keeper.log").read_text()[-3000:]


@pytest.mark.thorough
@pytest.mark.slow
async def test_none_of_vllms_processes_outlives_its_killed_server(until: Until, tmp_path: Path) -> None:
    with started("vllm", MODEL, tmp_path / "engine.log", flags=["--enforce-eager"]) as (_, server):
        processes = psutil.Process(server.pid).children(recursive=True)
        assert len(processes) > 1, "vLLM's core and its worker"
        server.kill()

        async def all_gone() -> bool:
            return not any(process.is_running() for process in processes)

        await until(all_gone, 30)


def test_the_script_names_its_requirements(kind: str) -> None:
    script = str(SCRIPTS[kind])
    shown = subprocess.run([script, "--help"], capture_output=True, text=True, check=True).stdout
    assert {"install", "serve", f"{kind.upper()}_ROOT", "TORCH_INDEX_URL"} <= set(shown.replace(":", " ").split())
    for arguments, said in (
        ([], "install"),
        (["serve"], "serve needs a model"),
        (["serve", "tests"], "has no config.json"),
    ):
        done = subprocess.run([script, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert said in done.stderr
    done = subprocess.run(
        [script, "serve", str(MODEL)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, f"{kind.upper()}_ROOT": "/nowhere"},
    )
    assert done.returncode == 1
    assert "not installed in /nowhere" in done.stderr
