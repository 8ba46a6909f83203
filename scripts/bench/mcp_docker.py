"""MCP-Docker: what a session and a call cost, how many it bears at once, and what is left after kills.

    python -m scripts.bench.mcp_docker [--quick]                 open sessions, calls per second, sessions per second
    python -m scripts.bench.mcp_docker --tools python shell …     the same for each of these tool servers, one after another
    python -m scripts.bench.mcp_docker --parts growth            memory of one gateway over 10,000 sessions
    python -m scripts.bench.mcp_docker --parts soak              10,000 sessions, a third of them and the gateway twice killed

A session has one tool server: a bundled one, which is forked, or `light`, the least that is a server, started as a
command. Clients are raw HTTP in this process, so that they cost little. Times are also given as processor time, which other
programs of the machine do not change much: of the gateway, of the tool processes with their wardens, and of the clients.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import psutil

from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from scripts.bench.measured_gateway import (
    MeasuredGateway,
    calling,
    ended,
    left_over,
    measured,
    memory,
    opened,
    until_empty,
)
from scripts.bench.measured_tools import NAMES, MeasuredTool, measured_tool
from scripts.bench.processes import ROOT

PARTS = ("open", "calls", "start")
_ROWS = 10  # of the part `growth`
_OF_EVERY_SESSION = ("light", "calculator")  # what the clients of the soak call


async def measure(options: Options) -> Tables:
    tables: dict[str, list[Row]] = {
        "machine": [{"cores": os.cpu_count(), "load of the last minute": os.getloadavg()[0]}]
    }
    for name in options.tools:
        # Outside of the caller's folder: users of sessions may not enter that.
        with tempfile.TemporaryDirectory() as path, measured_tool(name, Path(path)) as tool:
            if set(options.parts) & set(PARTS):
                costs = await costs_of(options, Path(path), tool)
                tables |= {f"{name}: {what}": rows for what, rows in costs.items()}
            if "growth" in options.parts:
                tables[f"{name}: growth"] = await growth(options, Path(path), tool)
            if "soak" in options.parts:
                tables[f"{name}: soak"] = [await Soak(options, Path(path), tool).run()]
    return tables


async def costs_of(options: Options, folder: Path, tool: MeasuredTool) -> dict[str, list[Row]]:
    gateway = MeasuredGateway(folder, options, tool)
    rows: list[Row] = []
    try:
        if "start" in options.parts:

            async def starts() -> None:
                for begun in range(0, options.starts, options.at_once):
                    wave = min(options.at_once, options.starts - begun)
                    await ended(await opened(gateway, wave, wave), wave)

            rows.append(await measured(gateway, "session started, ended", options.starts, starts))
        sessions = []

        async def open_all() -> None:
            sessions.extend(await opened(gateway, options.sessions, options.at_once))

        rows.append(await measured(gateway, "session opened", options.sessions, open_all))
        if "calls" in options.parts:
            few = sessions[: options.callers]
            await calling(sessions, len(sessions), tool)  # a first call starts what a tool starts when it is needed
            use = memory(gateway, len(sessions))
            what = f"call, {len(few)} callers"
            rows.append(await measured(gateway, what, options.calls, lambda: calling(few, options.calls, tool)))
            idle = await measured(gateway, "", 1, lambda: asyncio.sleep(0.1 if options.quick else 10))
            use["idle CPU s per s"] = (idle["gateway CPU ms"] + idle["tools CPU ms"]) / 1000 / idle["seconds"]
        else:
            use = memory(gateway, len(sessions))
        rows.append(
            await measured(gateway, "session ended", options.sessions, lambda: ended(sessions, options.at_once))
        )
        tools = gateway.tools()
    finally:
        gateway.stop()
    rest = {"processes after": len(tools), **_left_over(gateway, tools)}
    return {"costs": rows, "open sessions": [use | rest]}


def _left_over(gateway: MeasuredGateway, known: Iterable[psutil.Process]) -> Row:
    return {f"{name} left": number for name, number in left_over(gateway.state, known).items()}


async def growth(options: Options, folder: Path, tool: MeasuredTool) -> list[Row]:
    """Memory and open files of one gateway, without a session, while sessions come, call and go."""
    gateway = MeasuredGateway(folder, options, tool)
    rows = [{"sessions so far": 0, **memory(gateway, 0)}]
    step = -(-options.soak // _ROWS)
    try:
        for done in range(step, options.soak + step, step):
            for begun in range(0, step, options.at_once):
                sessions = await opened(gateway, min(options.at_once, step - begun), options.at_once)
                await calling(sessions, len(sessions), tool)
                await ended(sessions, options.at_once)
            rows.append({"sessions so far": done, **memory(gateway, 0)})
    finally:
        gateway.stop()
    return rows


class Soak:
    """Waves of sessions; of each wave a third belongs to a process that is killed. The gateway is killed twice."""

    def __init__(self, options: Options, folder: Path, tool: MeasuredTool) -> None:
        self._options, self._folder, self._tool = options, folder, tool
        self._gateway = MeasuredGateway(folder, options, tool)
        self._known: set[psutil.Process] = set()
        self._done = self._broken = self._kills = 0

    async def run(self) -> Row:
        try:
            while self._done < self._options.soak:
                await self._wave(min(self._options.at_once, self._options.soak - self._done))
            await until_empty(self._gateway)
            use = memory(self._gateway, 0)
            self._known.update(self._gateway.tools())
        finally:
            self._gateway.stop()
        await asyncio.sleep(1)
        counts = {"sessions": self._done, "broken off": self._broken, "gateway kills": self._kills}
        return {**counts, **_left_over(self._gateway, self._known), "gateway MB": use["gateway MB"]}

    async def _wave(self, wave: int) -> None:
        lost = wave // 3
        command = [sys.executable, "-m", "scripts.bench.raw_mcp_client", str(self._gateway.port), str(lost)]
        client = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
        assert client.stdout is not None
        try:
            sessions = await opened(self._gateway, wave - lost, wave)
            await calling(sessions, len(sessions), self._tool)
            assert await client.stdout.readline() == b"open\n"
            self._done, self._broken = self._done + wave, self._broken + lost
            if self._kills < 2 and self._done >= (self._kills + 1) * self._options.soak // 3:
                self._restart()
                for session in sessions:
                    session.drop()
                return
        finally:
            with contextlib.suppress(ProcessLookupError):
                client.kill()
            await client.wait()
        await ended(sessions, wave)

    def _restart(self) -> None:
        self._known.update(self._gateway.tools())
        self._kills += 1
        self._gateway.kill()
        self._gateway = MeasuredGateway(self._folder, self._options, self._tool)


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--parts", nargs="+", choices=(*PARTS, "growth", "soak"), default=PARTS)
    parser.add_argument("--sessions", type=int, default=1000, help="open at once")
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--callers", type=int, default=64, help="sessions that call at the same time")
    parser.add_argument("--starts", type=int, default=1000, help="sessions that are started and ended")
    parser.add_argument("--at_once", type=int, default=50, help="sessions that are opened at the same time")
    parser.add_argument("--warm", type=int, default=0, help="warm sets; 0: every start is measured")
    parser.add_argument("--starting", type=int, default=8, help="sets that start at the same time")
    parser.add_argument("--soak", type=int, default=10_000, help="sessions of the parts soak and growth")
    parser.add_argument("--tools", nargs="+", choices=NAMES, default=["calculator"])
    parser.add_argument("--isolation", choices=("process", "bubblewrap"), default="process")
    options = parser.parse_known_args()[0]
    if "soak" in options.parts and not set(options.tools) <= set(_OF_EVERY_SESSION):
        parser.error(f"the part soak calls {' or '.join(_OF_EVERY_SESSION)} alone; --tools has {options.tools}")
    run_benchmark(parser, measure, sessions=4, calls=40, callers=2, starts=4, at_once=6, soak=12)
