"""The tool server `tool_servers/box.py` in a child process, and what tests ask of it."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sampler.core.tools import ToolServer, ToolSession

SERVERS = Path(__file__).parent / "tool_servers"
PATIENCE_S = 60.0  # limit on a slow machine for operations that are immediate on an idle one


@dataclass
class Box:
    process: subprocess.Popen[str]
    port: int

    @property
    def server(self) -> ToolServer:
        return ToolServer(name="box", url=f"http://127.0.0.1:{self.port}/mcp")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def start_box(*flags: str) -> Box:
    command = [sys.executable, str(SERVERS / "box.py"), "http", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    process.stdout.close()
    return Box(process, port)


def stdio(name: str, file: str = "box.py") -> ToolServer:
    return ToolServer(name=name, command=sys.executable, args=(str(SERVERS / file), "stdio"))


async def calls_of_slow(session: ToolSession) -> dict[str, int]:
    counts: dict[str, int] = json.loads((await session.call("calls_of_slow", {})).text)
    return counts


async def until_slow(session: ToolSession, **counts: int) -> None:
    """Until the server has seen so many calls of `slow`: it hears of each one a while after it was made."""
    async with asyncio.timeout(PATIENCE_S):
        while not counts.items() <= (await calls_of_slow(session)).items():  # noqa: ASYNC110 - another process counts
            await asyncio.sleep(0.01)


@asynccontextmanager
async def undisturbed() -> AsyncIterator[None]:
    """The episode's own task is never cancelled by what happens to a server."""
    yield
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
