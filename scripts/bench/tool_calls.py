"""CPU time of a tool call in the sampler's process, compared with the MCP SDK's client and a raw HTTP client.

    python -m scripts.bench.tool_calls [--transports http,events,stdio] [--clients ours,sdk,raw] [--sessions 8] [--calls 200]
                                       [--rounds 3] [--json FILE] [--quick]

A real MCP server (the bundled example's) in a process of its own; `events` answers with event streams, as most servers of
others do, `http` with JSON. `--sessions` sessions are opened one after another, each makes `--calls` calls, all sessions at
the same time. Figures are processor time of the client's process alone, medians over the rounds, clients by turns:

    ms/call      of a call
    ms/session   of a session's opening, its list of tools and its end
    ms/turn      of both together, with 10 calls a session
"""

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from sampler.core.tools import ToolCatalog, ToolServer, ToolSession, parse_servers
from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from scripts.bench.processes import ROOT, started, wait_for_port
from scripts.bench.raw_mcp_client import RawSession
from shared.processes.mongod import free_port

SERVER = ROOT / "assets" / "example" / "tool_server.py"
ARGUMENTS = {"expression": "1+1"}
CALLS_OF_AN_EPISODE = 10
Call = Callable[[], Awaitable[str]]


class Client(Protocol):
    """Opens a session and closes it; what it yields makes one call, and returns its text."""

    def __call__(self, where: "Where") -> contextlib.AbstractAsyncContextManager[Call]: ...


class Where:
    """One tool server. `port=None`: over stdio."""

    def __init__(self, port: int | None) -> None:
        self.port = port
        entry: dict[str, Any] = {"command": sys.executable, "args": [str(SERVER), "--transport", "stdio"]}
        if port is not None:
            entry = {"url": f"http://127.0.0.1:{port}/mcp"}
        self.servers: list[ToolServer] = parse_servers({"mcpServers": {"tools": entry}})
        self.catalog = ToolCatalog()  # one for all sessions, as in a sampler


@contextlib.asynccontextmanager
async def _ours(where: Where) -> AsyncIterator[Call]:
    async with ToolSession(where.servers, catalog=where.catalog) as session:

        async def call() -> str:
            return (await session.call("calculator", ARGUMENTS)).text

        yield call


@contextlib.asynccontextmanager
async def _sdk(where: Where) -> AsyncIterator[Call]:
    """The SDK's client as its documentation has it."""
    transport: contextlib.AbstractAsyncContextManager[Any] = (
        stdio_client(StdioServerParameters(command=sys.executable, args=[str(SERVER), "--transport", "stdio"]))
        if where.port is None
        else streamable_http_client(f"http://127.0.0.1:{where.port}/mcp")
    )
    async with transport as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        await session.list_tools()

        async def call() -> str:
            block = (await session.call_tool("calculator", ARGUMENTS)).content[0]
            return str(getattr(block, "text", ""))

        yield call


@contextlib.asynccontextmanager
async def _raw(where: Where) -> AsyncIterator[Call]:
    """The least: no bounds, no errors, no notifications."""
    assert where.port is not None
    session = RawSession(where.port)
    await session.open()

    async def call() -> str:
        return str((await session.call("calculator", ARGUMENTS))["content"][0]["text"])

    yield call
    await session.end()


CLIENTS: dict[str, Client] = {"ours": _ours, "sdk": _sdk, "raw": _raw}


async def measure(options: Options) -> Tables:
    rows: list[Row] = []
    for transport in options.transports.split(","):
        names = [name for name in options.clients.split(",") if name != "raw" or transport == "http"]
        async with _served(transport, options.folder) as where:
            figures: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
            for name in names:
                await _cost(CLIENTS[name], where, 1, 1)  # imports and caches
            for _ in range(options.rounds):
                for name in names:
                    figures[name].append(await _cost(CLIENTS[name], where, options.sessions, options.calls))
        for name, costs in figures.items():
            call_ms, session_ms = (statistics.median(cost[part] * 1e3 for cost in costs) for part in (0, 1))
            turn_ms = call_ms + session_ms / CALLS_OF_AN_EPISODE
            row = {"transport": transport, "client": name, "ms/call": call_ms, "ms/session": session_ms}
            rows.append(row | {"ms/turn": turn_ms})
    return {"tool calls": rows}


@contextlib.asynccontextmanager
async def _served(transport: str, folder: Path) -> AsyncIterator[Where]:
    if transport == "stdio":
        yield Where(None)
        return
    port = free_port()
    command = ["-m", "scripts.bench.event_tool_server"] if transport == "events" else [str(SERVER)]
    with started([sys.executable, *command, "--port", str(port)], folder / f"{transport}.log"):
        wait_for_port(port)
        yield Where(port)


async def _cost(client: Client, where: Where, num_sessions: int, num_calls: int) -> tuple[float, float]:
    """CPU seconds of this process: per call, and per session without its calls."""
    async with contextlib.AsyncExitStack() as stack:
        began = time.process_time()
        calls = [await stack.enter_async_context(client(where)) for _ in range(num_sessions)]
        opened = time.process_time()
        await asyncio.gather(*(_call_often(call, num_calls) for call in calls))
        called = time.process_time()
    ended = time.process_time()
    return (called - opened) / (num_sessions * num_calls), (opened - began + ended - called) / num_sessions


async def _call_often(call: Call, times: int) -> None:
    for _ in range(times):
        text = await call()
        if text != "2":
            raise SystemExit(f"the tool answered {text!r}; expected '2'")


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--transports", default="http,events,stdio")
    parser.add_argument("--clients", default="ours,sdk,raw")
    parser.add_argument("--sessions", type=int, default=8, help="at once (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=200, help="of a session (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of each client (default: %(default)s)")
    run_benchmark(parser, measure, decimals=3, sessions=1, calls=2, rounds=1)
