"""Kills work at any command that it sends to the database, before or after the server executed it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

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

    async def dies(self, n: int, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Do it, killed at event n; False when it came to its end before."""
        self.left, self.victim = n, asyncio.create_task(work())
        try:
            await self.victim
        except asyncio.CancelledError:
            return True
        finally:
            self.victim = None
        return False
