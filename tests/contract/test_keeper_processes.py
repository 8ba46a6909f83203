"""An engine of several processes on a shared device: it sleeps or has ended only when none of them is left.

As SGLang has schedulers, and as a command has a shell in front that does not become the engine. The engine is the local one.
"""

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from shared.documents.leases import LeaseClaim
from shared.processes.mongod import Mongod
from shared.store import Store
from shared.store.pipelines import EPOCH
from tests.contract.engines import MODEL, ROOT
from tests.contract.kept import Wire
from tests.contract.test_keeper_sharing import LONG_S, sharing
from tests.contract.test_keeper_stop import started

pytestmark = pytest.mark.slow
Until = Callable[..., Awaitable[None]]

# The wrapper starts the engine, and a scheduler in a session of its own that ignores SIGTERM; it writes the pids of all.
WRAPPER = """
import os, signal, subprocess, sys
folder, engine = sys.argv[1], sys.argv[2:]
SCHEDULER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(100000)"
server = subprocess.Popen(engine)
scheduler = subprocess.Popen([sys.executable, "-c", SCHEDULER], start_new_session=True, stdout=subprocess.PIPE)
scheduler.stdout.readline()
number = len(os.listdir(folder))
with open(f"{folder}/{number}.new", "w") as file:
    file.write(f"{os.getpid()} {server.pid} {scheduler.pid}")
os.rename(f"{folder}/{number}.new", f"{folder}/{number}")
sys.exit(server.wait())
"""
ENGINE = (sys.executable, "-m", "sampler.engine.local", "--model-path", "{model}", "--port", "{port}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where every start leaves its pids; none of them outlives the test."""
    monkeypatch.chdir(ROOT)
    found = tmp_path / "starts"
    found.mkdir()
    yield found
    for start in found.iterdir():
        for pid in map(int, start.read_text().split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def wrapped(folder: Path) -> str:
    return shlex.join([sys.executable, "-c", WRAPPER, str(folder), *ENGINE])


async def processes(folder: Path, number: int, until: Until) -> list[psutil.Process]:
    """Of a start: the wrapper, the server, the scheduler."""

    async def is_there() -> bool:
        return (folder / str(number)).exists()

    await until(is_there)
    return [psutil.Process(int(pid)) for pid in (folder / str(number)).read_text().split()]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.mark.parametrize(
    "killed",
    [
        "wrapper",
        *(pytest.param(one, marks=pytest.mark.thorough) for one in ("server", "all but the scheduler", "guard")),
    ],
)
async def test_a_crashed_engine_gives_its_device_away_when_its_last_process_has_ended(
    store: Store, models: tuple[Path, Path], until: Until, tmp_path: Path, folder: Path, killed: str
) -> None:
    wire = Wire()
    async with sharing(store, models, until, tmp_path, wire, engine_command=wrapped(folder)) as shared:
        await shared.serves(0)
        first = await processes(folder, 0, until)
        wrapper, server, _ = first
        guard = psutil.Process(wrapper.ppid())
        chosen = {"wrapper": [wrapper], "server": [server], "guard": [guard]}.get(killed, [wrapper, server])
        for process in chosen:
            process.kill()
        claim = await shared.take()
        # A server whose wrapper was killed may still have replied that it has released its memory.
        has_released = killed == "wrapper" and "/release_memory_occupation" in wire.asked
        assert alive(first) == [] or has_released
        await store.leases.release(claim)
        await shared.serves(0)
        assert alive(first) == []
        second = await processes(folder, 1, until)
        assert len(alive(second)) == 3
    assert alive(second) == [], "and none outlives its keeper"


class Sleepless(Wire):
    """The engine never pauses."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/pause_generation":
            raise httpx.ReadTimeout("it does not pause")
        return await super().handle_async_request(request)


async def test_an_engine_that_does_not_sleep_is_ended_with_all_its_processes(
    store: Store, models: tuple[Path, Path], until: Until, tmp_path: Path, folder: Path
) -> None:
    wire = Sleepless()
    async with sharing(store, models, until, tmp_path, wire, engine_command=wrapped(folder)) as shared:

        async def answers() -> bool:
            return wire.asked.count("/model_info") > 0 and "/pause_generation" not in wire.asked

        await until(answers)
        first = await processes(folder, 0, until)
        claim = await shared.take()
        assert alive(first) == []
        await store.leases.release(claim)
        await processes(folder, 1, until)


class Lost(Wire):
    """The engine resumes its memory, as asked, and the reply is lost; the trainer claims next. `lose`: how often."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self.lose = 1
        self.claim: LeaseClaim | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if request.url.path == "/resume_memory_occupation" and self.lose:
            self.lose -= 1
            self.claim = await self._store.leases.claim("gpu:h:0", "the next", LONG_S)
            raise httpx.ReadTimeout("the reply is lost")
        return response


@pytest.mark.thorough
async def test_an_engine_that_may_have_resumed_its_memory_is_ended_before_a_trainer_has_the_device(
    store: Store, models: tuple[Path, Path], until: Until, tmp_path: Path, folder: Path
) -> None:
    wire = Lost(store)
    async with sharing(store, models, until, tmp_path, wire, engine_command=wrapped(folder)) as shared:
        await shared.serves(0)
        first = await processes(folder, 0, until)
        claim = await shared.take()
        assert len(alive(first)) == 3
        await store.leases.release(claim)

        async def is_taken() -> bool:
            return wire.claim is not None and await store.leases.take(wire.claim)

        await until(is_taken)
        assert alive(first) == [], "none has memory of the device"
        assert wire.claim is not None
        await store.leases.release(wire.claim)
        await shared.serves(0)
        assert wire.asked.count("/resume_memory_occupation") == 1, "a second one would crash SGLang"


class Stuck(Wire):
    """Requests to `path` get no reply until the test ends."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self.let_go = asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == self._path:
            self.asked.append(self._path)
            await asyncio.wait_for(self.let_go.wait(), LONG_S)
        return await super().handle_async_request(request)


@pytest.mark.parametrize(
    "path",
    [
        "/update_weights_from_disk",
        *(pytest.param(one, marks=pytest.mark.thorough) for one in ("/v1/loads", "/model_info")),
    ],
)
async def test_an_engine_counts_as_alive_while_a_request_to_it_lasts(
    store: Store, models: tuple[Path, Path], until: Until, tmp_path: Path, path: str
) -> None:
    """A load of weights, a report, and the start, at which the engine has the first weights already."""
    wire = Stuck(path)
    newest = 1 if path == "/update_weights_from_disk" else 0
    async with sharing(store, models, until, tmp_path, wire) as shared:
        if newest:
            await shared.serves(0)
            await shared.announce(newest)

        async def is_stuck() -> bool:
            return path in wire.asked

        await until(is_stuck)
        for _ in range(2):
            await store.database["leases"].update_one({}, {"$set": {"occupants.0.free_at": EPOCH}})

            async def is_alive() -> bool:
                (mine,) = (await store.leases.get(shared.lease)).occupants
                assert mine.asleep_for is None
                return mine.free_at > EPOCH

            await until(is_alive)
        wire.let_go.set()
        await shared.serves(newest)


async def test_all_processes_of_an_engine_end_if_its_keeper_is_killed(
    mongod: Mongod, store: Store, until: Until, tmp_path: Path, folder: Path
) -> None:
    command = [sys.executable, "-m", "sampler.engine.keeper", "--run", store.run, "--model_name_or_path", str(MODEL)]
    command += ["--db_connection_string", mongod.connection_string, "--engine_command", wrapped(folder)]
    with (tmp_path / "keeper.log").open("wb") as log:
        keeper = started(command, log)
    try:
        first = await processes(folder, 0, until)
        assert len(alive(first)) == 3
        os.killpg(keeper.pid, signal.SIGKILL)

        async def all_gone() -> bool:
            return not alive(first)

        await until(all_gone)
    finally:
        keeper.kill()
        await asyncio.to_thread(keeper.wait, 60)
