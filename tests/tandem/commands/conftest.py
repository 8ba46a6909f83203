"""Fixtures: `tandem` run in this process, and a played run to read."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pymongo
import pytest
from typer.testing import CliRunner, Result

from shared.processes.mongod import Mongod
from tandem import app
from tests.shared.played import play
from tests.tandem.commands.commands import Command


@pytest.fixture(scope="module")
def played(mongod: Mongod) -> Iterator[str]:
    """A whole run, played once: the tests of a module only read it."""
    asyncio.run(play(mongod.connection_string, "played"))
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
