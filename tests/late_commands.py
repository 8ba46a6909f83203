"""Commands that reach the database late: those of a verb, kept and sent again; and a line that holds one back.

A process that is stopped, a network that stands still, a driver that gave up waiting and asked again: each ends in a server that
carries out a write long after the world has moved on.
"""

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import bson
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from shared.store.signals import SIGNALS

WRITES = frozenset({"insert", "update", "delete", "findAndModify"})
QUESTIONS = frozenset({"find", "aggregate", "getMore"})
OF_THE_CONNECTION = ("lsid", "$clusterTime", "$db", "txnNumber", "$readPreference")
Everything = dict[str, list[dict[str, Any]]]


class Recorder(CommandListener):
    """The writes that its client sends."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name in WRITES:
            command = copy.deepcopy(dict(event.command))
            self.sent.append({name: value for name, value in command.items() if name not in OF_THE_CONNECTION})

    def succeeded(self, event: CommandSucceededEvent) -> None: ...

    def failed(self, event: CommandFailedEvent) -> None: ...

    def take(self) -> list[dict[str, Any]]:
        taken, self.sent = self.sent, []
        return taken


async def send(database: AsyncDatabase[dict[str, Any]], commands: list[dict[str, Any]]) -> None:
    """As they were sent before. Errors (a key that is taken) go to the client that waits for the answer: there is none."""
    for command in commands:
        await database.command(command)


async def everything(database: AsyncDatabase[dict[str, Any]]) -> Everything:
    """Every document, as stored; signals say only that it is worth looking."""
    names = await database.list_collection_names()
    return {name: await database[name].find().sort("_id", 1).to_list() for name in sorted(names) if name != SIGNALS}


class Line:
    """A connection to the database on which the n-th command is held back until `let_go`."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._left: int | None = None
        self._go = asyncio.Event()
        self.held = asyncio.Event()
        self.port = 0

    def hold(self, n: int) -> None:
        self._left = n
        self.held.clear()
        self._go.clear()

    def let_go(self) -> None:
        self._left = None
        self._go.set()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size = await reader.readexactly(4)
                message = size + await reader.readexactly(int.from_bytes(size, "little") - 4)
                if self._left is not None and _name(message) in WRITES | QUESTIONS:
                    self._left -= 1
                    if self._left == 0:
                        self.held.set()
                        await self._go.wait()
                writer.write(message)
                await writer.drain()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._to_port)
        there = asyncio.create_task(self._carry(reader, to_server))
        back = asyncio.create_task(_copy(from_server, writer))
        await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
        for one in (writer, to_server):
            one.close()
        for task in (there, back):
            task.cancel()
        await asyncio.gather(there, back, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


def _name(message: bytes) -> str:
    """Of a command: the first field of an OP_MSG's body, which is its first section. Empty: another kind of message."""
    if int.from_bytes(message[12:16], "little") != 2013 or message[20] != 0:
        return ""
    size = int.from_bytes(message[21:25], "little")
    return next(iter(bson.decode(message[21 : 21 + size])))


@asynccontextmanager
async def open_line(to_port: int) -> AsyncIterator[Line]:
    line = Line(to_port)
    server = await asyncio.start_server(line.serve, "127.0.0.1", 0)
    line.port = server.sockets[0].getsockname()[1]
    try:
        yield line
    finally:
        line.let_go()
        server.close()
