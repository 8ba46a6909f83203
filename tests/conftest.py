"""What every test may ask for: a real mongod (one per test process) and a fresh database in it."""

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shared.mongod import Mongod
from shared.store import Store

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def mongod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mongod]:
    with Mongod(tmp_path_factory.mktemp("mongod")) as server:
        yield server


@pytest.fixture
async def store(mongod: Mongod) -> AsyncIterator[Store]:
    async with Store.open(mongod.connection_string, f"test-{uuid.uuid4().hex[:12]}") as store:
        yield store
        await store.client.drop_database(store.run)
