"""A settler killed at any of its commands, before or after the server executed it, is replaced with the same result."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from sampler.config import SamplerConfig
from sampler.settlement.settle import settle
from shared.documents import Task
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.sampler.groups import EVERY_RULE, completed_group, everything, restore, timeless, varied_group
from tests.sampler.settlement_cases import make_config

COMMANDS = {"find", "aggregate", "update", "insert", "findAndModify", "getMore"}


class Killer(CommandListener):
    """Cancels `victim` at its n-th event: each command gives two, when it is sent and when its answer has come."""

    def __init__(self) -> None:
        self.victim: asyncio.Task[None] | None = None
        self.left = 0

    def started(self, event: CommandStartedEvent) -> None:
        self._look(event.command_name)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        self._look(event.command_name)

    def failed(self, event: CommandFailedEvent) -> None:
        self._look(event.command_name)

    def _look(self, command: str) -> None:
        if self.victim is None or command not in COMMANDS:
            return
        self.left -= 1
        if self.left == 0:
            self.victim.cancel()

    async def dies(self, n: int, store: Store, task: Task, config: SamplerConfig) -> bool:
        """Settle, killed at event n; False when it came to its end before."""
        self.left, self.victim = n, asyncio.create_task(settle(store, task, config))
        try:
            await self.victim
        except asyncio.CancelledError:
            return True
        finally:
            self.victim = None
        return False


@pytest.fixture
async def mortal(mongod: Mongod, store: Store) -> AsyncIterator[tuple[Store, Killer]]:
    """The same run through another client, whose commands the killer hears of."""
    killer = Killer()
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(mongod.connection_string, event_listeners=[killer])
    yield Store(client, store.run), killer
    await client.close()


@pytest.mark.parametrize("kind", ["some are dropped", "all are dropped"])
async def test_a_settler_killed_at_any_command_is_completed_by_another_with_the_same_result(
    store: Store, mortal: tuple[Store, Killer], kind: str
) -> None:
    dying, killer = mortal
    if kind == "some are dropped":
        task, config = await varied_group(store), make_config(EVERY_RULE)
    else:
        task, config = await completed_group(store, [1.0, 1.0, None]), make_config({"zero_variance_tolerance": 0.1})
    before = await everything(store)
    await settle(store, task, config)
    expected = timeless(await everything(store))
    deaths, partial = 0, 0
    while True:
        await restore(store, before)
        if not await killer.dies(deaths + 1, dying, task, config):
            break
        deaths += 1
        partial += timeless(await everything(store)) not in (timeless(before), expected)
        await settle(store, task, config)
        assert timeless(await everything(store)) == expected, f"killed at event {deaths}"
    assert deaths >= 14, "two events of every command"
    assert partial >= 6, "it left something half done"
    await restore(store, before)
    await settle(store, task, config)
    await settle(store, task, config)
    assert timeless(await everything(store)) == expected
