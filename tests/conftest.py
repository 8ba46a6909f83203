"""Fixtures of all tests: a real mongod (one per test process) and a fresh database in it."""

import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings
from pymongo import AsyncMongoClient
from xdist.scheduler import LoadScopeScheduling

from shared.processes.mongod import Mongod
from shared.store import Store
from tests.killer import Killer
from tests.surroundings import make_clean

ROOT = Path(__file__).parents[1]
make_clean(os.environ, ROOT)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup, and our programs keep an ignored signal ignored
# One thread for each of the processes side by side: of two that wait for each other on one core, most of the time is spent
# waiting (38 s of computing instead of 16 s for five files of tests). Read when torch is imported, here and in every child.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"  # a name of the Hub in a test, of any process of it, is looked for in caches alone
# Started in the background by a shell, tests would hand on an ignored Ctrl-C, and no child could be interrupted.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A time-out of CI ends a run with it: as after Ctrl-C, fixtures end what they started (a mongod, an SGLang).
signal.signal(signal.SIGTERM, signal.default_int_handler)


# The same examples in every run, so that a change is refused for what it does itself; and no bound on the time of one, which a
# busy machine breaks. `pytest --hypothesis-profile default` draws others.
settings.register_profile(
    "same examples", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same examples")

# What takes long to start is started once: tests that share it go to one worker. SGLang takes 15 s, two launched trainers 20 s.
UNITS = (
    r"tests/contract/.*\[(local|sglang|vllm)",
    r"tests/trainer/.*\[(two_processes)",
    r"(tests/sampler/engine/local)/",
    r"(tests/system/.*)",
    r"(tests/test_benchmarks\.py::.*)",
)
IN_MEMORY, FOLDER_OF = Path("/dev/shm"), "tandem-test-"
IN_MEMORY_BYTES = 4 << 30  # of all test processes; one takes 0.3 GB
# By pytest, and by PyTorch's compiler and CUDA at their first use.
SET_BY_OTHERS = (
    *("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"),
    *("CUDA_MODULE_LOADING", "TRITON_PTXAS_PATH", "TORCH_WARM_POOL"),
)
LONGEST_FIRST = ("contract", "system", "trainer", "sampler")


class UnitsOfWork(LoadScopeScheduling):
    """One unit at a time goes to whichever worker is free: those above, else the tests of a file. A test of whole processes
    (tests/system) shares nothing, and is a unit by itself.

    (xdist 3.8's own groups have no effect with pytest 9.2: they are written to an attribute that it no longer reads.)
    """

    def _split_scope(self, nodeid: str) -> str:
        found = next(filter(None, (re.match(unit, nodeid) for unit in UNITS)), None)
        return found[1] if found else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # xdist would begin with the units of many tests, which are quick ones
    return UnitsOfWork(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Among workers the long tests come first, so that at the end none waits for the other."""

    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(ROOT / "tests").parts[0]
        return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)

    if hasattr(config, "workerinput"):
        items.sort(key=place)


@pytest.fixture(autouse=True)
def process_as_it_was() -> Iterator[None]:
    """A test that leaves something in its process may be what a later one passes, or fails, by."""
    before = _state_of_the_process()
    yield
    assert _state_of_the_process() == before


def _state_of_the_process() -> dict[str, object]:
    environment = {name: value for name, value in os.environ.items() if name not in SET_BY_OTHERS}
    handlers = [handler for handler in logging.getLogger().handlers if "pytest" not in type(handler).__module__]
    accelerate = sys.modules.get("accelerate.state")
    states = ("PartialState", "AcceleratorState", "GradientState") if accelerate else ()
    return {
        "environment": environment,
        "directory": Path.cwd(),
        "handlers of the root logger": handlers,
        "Accelerate's state": [name for name in states if getattr(accelerate, name)._shared_state],
    }


@pytest.fixture(scope="session")
def mongod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mongod]:
    """Of a test process. In memory where it has room: a run is fifty files, made and deleted for each test that has one."""
    if not IN_MEMORY.is_dir() or shutil.disk_usage(IN_MEMORY).free < IN_MEMORY_BYTES:
        with Mongod(tmp_path_factory.mktemp("mongod")) as server:
            yield server
        return
    for left in IN_MEMORY.glob(f"{FOLDER_OF}*"):  # by a test process that was killed
        pid = left.name.removeprefix(FOLDER_OF).partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)  # another user's stays
    folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_OF}{os.getpid()}-", dir=IN_MEMORY))
    try:
        with Mongod(folder) as server:
            yield server
    finally:
        shutil.rmtree(folder)


@pytest.fixture
async def store(mongod: Mongod) -> AsyncIterator[Store]:
    async with Store.open(mongod.connection_string, f"test-{uuid.uuid4().hex[:12]}") as store:
        yield store
        await store.client.drop_database(store.run)


@pytest.fixture
async def mortal(mongod: Mongod, store: Store) -> AsyncIterator[tuple[Store, Killer]]:
    """The same run through another client, whose commands the killer hears of."""
    killer = Killer()
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(mongod.connection_string, event_listeners=[killer])
    yield Store(client, store.run), killer
    await client.close()
