"""An index build may take longer than the client lets a command take: the start waits for it, and for nothing else."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.errors import NetworkTimeout

from shared.processes.mongod import Mongod
from shared.store.indexes import add_index
from tests.shared.replica_set import TESTABLE

ROOT = Path(__file__).parents[2]
COMMAND_S, BUILD_S = 0.5, 1.5
Client = AsyncMongoClient[dict[str, Any]]


@pytest.fixture
async def hasty(tmp_path: Path) -> AsyncIterator[Client]:
    """A client of a server of its own, which waits `COMMAND_S` for a command."""
    with Mongod(tmp_path / "mongod", options=TESTABLE) as server:
        client: Client = AsyncMongoClient(server.connection_string, socketTimeoutMS=round(COMMAND_S * 1000))
        yield client
        await client.close()


async def slow(client: Client, *commands: str) -> None:
    data = {"failCommands": commands, "blockConnection": True, "blockTimeMS": round(BUILD_S * 1000)}
    await client.admin.command({"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data})


async def test_a_start_waits_for_a_long_build(hasty: Client, caplog: pytest.LogCaptureFixture) -> None:
    await hasty["run"]["tasks"].insert_many([{"_id": n} for n in range(3)])
    await slow(hasty, "createIndexes")
    with caplog.at_level(logging.WARNING):
        await add_index(hasty["run"]["tasks"], [("seq", 1)], name="order")
    assert "order" in await hasty["run"]["tasks"].index_information()
    assert caplog.messages == ["index 'order' of run.tasks is being built: 3 documents, wait"]


async def test_a_server_that_answers_nothing_is_not_waited_for(hasty: Client, caplog: pytest.LogCaptureFixture) -> None:
    await slow(hasty, "createIndexes", "count")
    with pytest.raises(NetworkTimeout):
        await add_index(hasty["run"]["tasks"], [("seq", 1)], name="order")
    assert caplog.messages == []


def test_every_index_is_built_so() -> None:
    found = [path.name for path in (ROOT / "shared").rglob("*.py") if ".create_index(" in path.read_text("utf-8")]
    assert found == ["indexes.py"]
