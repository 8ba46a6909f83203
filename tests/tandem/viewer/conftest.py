"""A played run, and clients of the viewer's application over it: every request goes through its guard and routes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import pymongo
import pytest

from shared.processes.mongod import Mongod
from shared.store.connecting import connect
from tandem.viewer.app import make_app
from tests.shared.played import play

Client = httpx.AsyncClient
ClientOf = Callable[..., Client]
TOKEN = "a-token-of-the-test"


@pytest.fixture(scope="module")
def played(mongod: Mongod) -> Iterator[str]:
    """A whole run, played once: the tests of a module only read it."""
    asyncio.run(play(mongod.connection_string, "seen"))
    yield "seen"
    with pymongo.MongoClient(mongod.connection_string) as client:
        client.drop_database("seen")


@pytest.fixture
async def client_of(mongod: Mongod) -> AsyncIterator[ClientOf]:
    """Makes clients: `client_of(token, host=…)`."""
    database = connect(mongod.connection_string, 10.0)
    made: list[Client] = []

    def of(token: str | None = None, host: str = "127.0.0.1:8800") -> Client:
        transport = httpx.ASGITransport(app=make_app(database, token))
        made.append(httpx.AsyncClient(transport=transport, base_url=f"http://{host}"))
        return made[-1]

    yield of
    for client in made:
        await client.aclose()
    await database.close()


@pytest.fixture
def viewer(client_of: ClientOf) -> Client:
    return client_of()
