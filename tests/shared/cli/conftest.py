"""Fixtures: `tandem` run in this process, and a played run to read."""

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path

import pymongo
import pytest
from typer.testing import CliRunner, Result

from shared.cli import app
from shared.documents.run import InferenceService, Worker
from shared.documents.states import DataStatus, ServiceStatus
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.shared.cli.commands import Command
from tests.shared.episodes import whole_run


@pytest.fixture(scope="module")
def played(mongod: Mongod) -> Iterator[str]:
    """A whole run, played once: the tests of a module only read it."""

    async def play() -> None:
        async with Store.open(mongod.connection_string, "played") as store:
            records = await whole_run(store)
            await store.data.set_aside(records[2:3], DataStatus.STALE, "too old")
            await store.settings.keep("sampler", {"temperature": 1.0}, "w")
            await store.steps.note_metrics("main:1:1", {"reward/mean": 0.25, "loss/loss": -0.5, "loss/ratio": math.nan})
            await store.services.heartbeat(
                InferenceService(
                    id="http://e:1",
                    url="http://e:1",
                    policy="main",
                    version=1,
                    status=ServiceStatus.UP,
                    heartbeat_s=3600,
                )
            )
            stats = {"episodes_per_s": 2.5, "claims": 7}
            rare = {
                "kind": "sampler",
                "host": "h",
                "heartbeat_s": 3600.0,
                "stats": stats,
            }  # alive as long as the module
            await store.workers.heartbeat(Worker(id="a", pid=7, doing="playing", **rare))
            await store.workers.heartbeat(Worker(id="b", pid=8, **rare))

    asyncio.run(play())
    yield "played"
    with pymongo.MongoClient(mongod.connection_string) as client:
        client.drop_database("played")


@pytest.fixture
def tandem(mongod: Mongod, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs a command in an empty folder, against the test's server, on a wide terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DB_CONNECTION_STRING", mongod.connection_string)
    monkeypatch.setenv("COLUMNS", "220")

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments))

    return run
