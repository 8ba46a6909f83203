"""What every test may ask for: a real mongod (one per test process) and a fresh database in it."""

import re
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from shared.mongod import Mongod
from shared.store import Store

ROOT = Path(__file__).parents[1]
# Started in the background by a shell, tests would hand on an ignored Ctrl-C, and no child could be interrupted.
signal.signal(signal.SIGINT, signal.default_int_handler)


class OneWorkerPerEngine(LoadScopeScheduling):
    """Tests go to whichever worker is free, but the contract of one engine to one worker: SGLang takes 15 s to start.

    (xdist 3.8's own groups have no effect with pytest 9.2: they are written to an attribute that it no longer reads.)
    """

    def _split_scope(self, nodeid: str) -> str:
        found = re.match(r"tests/contract/.*\[(local|sglang)", nodeid)
        return f"contract-{found[1]}" if found else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return OneWorkerPerEngine(config, log)


@pytest.fixture(scope="session")
def mongod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mongod]:
    with Mongod(tmp_path_factory.mktemp("mongod")) as server:
        yield server


@pytest.fixture
async def store(mongod: Mongod) -> AsyncIterator[Store]:
    async with Store.open(mongod.connection_string, f"test-{uuid.uuid4().hex[:12]}") as store:
        yield store
        await store.client.drop_database(store.run)
