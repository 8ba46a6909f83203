"""The runs of a server: which databases may be runs, and one row of each, a few at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pymongo import AsyncMongoClient

from shared.names import OWN_DATABASES

MOST_RUNS = 1_000  # by name; more are not read
RUNS_AT_ONCE = 8

Client = AsyncMongoClient[dict[str, Any]]
Row = TypeVar("Row")


async def run_names(client: Client) -> list[str]:
    """Names of databases that may be runs, sorted."""
    return sorted(set(await client.list_database_names()) - set(OWN_DATABASES))


async def of_each_run(client: Client, read: Callable[[str], Awaitable[Row | None]]) -> list[Row]:
    """What `read` returns for each name, without None."""
    gate = asyncio.Semaphore(RUNS_AT_ONCE)

    async def one(name: str) -> Row | None:
        async with gate:
            return await read(name)

    rows = await asyncio.gather(*map(one, (await run_names(client))[:MOST_RUNS]))
    return [row for row in rows if row is not None]
