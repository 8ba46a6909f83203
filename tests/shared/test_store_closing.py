"""No connection to the database outlives its store, except one leaked by PyMongo."""

import asyncio
import gc
import socket
import warnings
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.errors import InvalidOperation

from shared.errors import ConfigError
from shared.processes.mongod import Mongod
from shared.store import Store


async def test_a_store_closes_its_client_also_when_its_body_raises(mongod: Mongod) -> None:
    stores: list[Store] = []

    async def fail() -> None:
        async with Store.open(mongod.connection_string, "closing") as store:
            stores.append(store)
            await store.client.drop_database("closing")
            raise KeyError

    with pytest.raises(KeyError):
        await fail()
    with pytest.raises(InvalidOperation, match="after close"):
        await stores[0].runs.get()


async def test_a_store_that_is_refused_leaves_no_client_open(mongod: Mongod, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[AsyncMongoClient[object]] = []
    close = AsyncMongoClient.close

    async def noted(client: AsyncMongoClient[object]) -> None:
        await close(client)
        closed.append(client)

    monkeypatch.setattr(AsyncMongoClient, "close", noted)
    with pytest.raises(ConfigError, match="no run 'absent'"):
        async with Store.open(mongod.connection_string, "absent", must_exist=True):
            pass
    assert len(closed) == 1


def test_pymongo_still_forgets_a_socket_when_it_is_closed_while_a_monitor_connects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Why pyproject.toml exempts one ResourceWarning. When this fails, PyMongo has mended it: remove both."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for one in (first, second):  # no accept: the next client blocks in `connect`
            one.setblocking(False)
            one.connect_ex(full.getsockname())

        async def close_while_connecting() -> None:
            loop, connecting = asyncio.get_running_loop(), asyncio.Event()
            connect = loop.sock_connect

            async def observed(*arguments: Any) -> None:
                connecting.set()
                await connect(*arguments)

            monkeypatch.setattr(loop, "sock_connect", observed)
            client: AsyncMongoClient[object] = AsyncMongoClient("127.0.0.1", full.getsockname()[1])
            ping = asyncio.create_task(client.admin.command("ping"))
            await asyncio.wait_for(connecting.wait(), 30)
            await client.close()
            ping.cancel()
            await asyncio.gather(ping, return_exceptions=True)

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            asyncio.run(close_while_connecting())
            gc.collect()
    assert [str(w.message) for w in caught if "unclosed <socket.socket" in str(w.message)], caught
