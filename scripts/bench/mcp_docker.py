"""MCP-Docker: what a session and a call cost, how many it bears at once, and what is left after kills.

python -m scripts.bench.mcp_docker [--quick]                 open sessions, calls per second, sessions per second
python -m scripts.bench.mcp_docker --tools python shell …     the same for each of these tool servers, one after another
python -m scripts.bench.mcp_docker --parts growth            memory of one gateway over 10,000 sessions
python -m scripts.bench.mcp_docker --parts soak              10,000 sessions, a third of them and the gateway twice killed

A session has one tool server: a bundled one, which is forked, or `light`, the least that is a server, started as a
command. Clients are raw HTTP in this process, so that they cost little. Times are also given as processor time, which other
programs of the machine do not change much: of the gateway, of the tool processes with their wardens, and of the clients.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from scripts.bench.left_over import left_over
from scripts.bench.measured_gateway import ROOT, MeasuredGateway, calling, ended, measured, memory, opened, until_empty
from scripts.bench.measured_tools import NAMES, MeasuredTool, measured_tool
from scripts.bench.raw_mcp_client import RawSession
from scripts.bench.results import add_json, parsed, show, write_json

PARTS = ("open", "calls", "start")
_LOOKS = 10  # at the memory, of the part `growth`
_OF_EVERY_SESSION = ("light", "calculator")  # what the clients of the soak call


async def speed(options: argparse.Namespace, folder: Path, name: str, tool: MeasuredTool) -> dict[str, Any]:
    gateway = MeasuredGateway(folder, options, tool)
    rows: list[dict[str, Any]] = []
    try:
        if "start" in options.parts:
            rows.append(
                await measured(
                    *(gateway, "session started, ended", options.starts),
                    lambda: started_and_ended(gateway, options.starts, options.at_once),
                )
            )
        sessions: list[RawSession] = []

        async def open_all() -> None:
            sessions.extend(await opened(gateway, options.sessions, options.at_once))

        rows.append(await measured(gateway, "session opened", options.sessions, open_all))
        if "calls" in options.parts:
            few = sessions[: options.callers]
            await calling(sessions, len(sessions), tool)  # a first call starts what a tool starts when it is needed
            held = memory(gateway, len(sessions))
            rows.append(
                await measured(
                    *(gateway, f"call, {len(few)} callers", options.calls),
                    lambda: calling(few, options.calls, tool),
                )
            )
            own = await measured(gateway, "second idle", 10, lambda: asyncio.sleep(10 if not options.quick else 0.1))
            held["idle CPU s per s"] = (own["gateway CPU ms"] + own["tools CPU ms"]) * 10 / 1000 / own["seconds"]
        else:
            held = memory(gateway, len(sessions))
        rows.append(
            await measured(gateway, "session ended", options.sessions, lambda: ended(sessions, options.at_once))
        )
        tools = gateway.tools()
        held["processes after"] = len(tools)
    finally:
        gateway.stop()
    show(rows, f"MCP-Docker, {name}: one tool server per session", decimals=2)
    show([held])
    return {"rows": rows, "memory": held, "left over": left_over(gateway.state, tools)}


async def started_and_ended(gateway: MeasuredGateway, number: int, at_once: int) -> None:
    while number > 0:
        wave = min(at_once, number)
        await ended(await opened(gateway, wave, wave), wave)
        number -= wave


async def growth(options: argparse.Namespace, folder: Path, tool: MeasuredTool) -> list[dict[str, Any]]:
    """Memory and open files of one gateway, without a session, while sessions come, call and go."""
    gateway = MeasuredGateway(folder, options, tool)
    rows = [{"sessions so far": 0, **memory(gateway, 0)}]
    step = -(-options.soak // _LOOKS)
    try:
        for done in range(step, options.soak + step, step):
            for begun in range(0, step, options.at_once):
                sessions = await opened(gateway, min(options.at_once, step - begun), options.at_once)
                await calling(sessions, len(sessions), tool)
                await ended(sessions, options.at_once)
            rows.append({"sessions so far": done, **memory(gateway, 0)})
    finally:
        gateway.stop()
    show(rows, "one gateway while sessions come and go", decimals=1)
    return rows


class Soak:
    """Waves of sessions; of each wave a third belongs to a process that is killed. The gateway is killed twice."""

    def __init__(self, options: argparse.Namespace, folder: Path, tool: MeasuredTool) -> None:
        self._options, self._folder, self._tool = options, folder, tool
        self._gateway = MeasuredGateway(folder, options, tool)
        self._seen: set[psutil.Process] = set()
        self._done = self._broken = self._kills = 0

    async def run(self) -> dict[str, Any]:
        try:
            while self._done < self._options.soak:
                await self._wave(min(self._options.at_once, self._options.soak - self._done))
            await until_empty(self._gateway)
            rest = memory(self._gateway, 0)
            self._seen.update(self._gateway.tools())
        finally:
            self._gateway.stop()
        await asyncio.sleep(1)
        left = left_over(self._gateway.state, self._seen)
        counts = {"sessions": self._done, "broken off": self._broken, "gateway kills": self._kills}
        show([{**counts, **left, "gateway MB": rest["gateway MB"]}], "left over")
        return {**counts, "left over": left, "gateway": rest}

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
        self._seen.update(self._gateway.tools())
        self._kills += 1
        self._gateway.kill()
        self._gateway = MeasuredGateway(self._folder, self._options, self._tool)


def _leave(number: int, frame: object) -> None:
    """SIGTERM ends what was started, as an exception does: the gateway is stopped by `finally`."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)


def measured_parts(options: argparse.Namespace, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as path, measured_tool(name, folder := Path(path)) as tool:
        if set(options.parts) & set(PARTS):
            found["speed"] = asyncio.run(speed(options, folder, name, tool))
        if "growth" in options.parts:
            found["growth"] = asyncio.run(growth(options, folder, tool))
        if "soak" in options.parts:
            found["soak"] = asyncio.run(Soak(options, folder, tool).run())
    return found


def main() -> None:
    signal.signal(signal.SIGTERM, _leave)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    add_json(parser)
    small = {"sessions": 4, "calls": 40, "callers": 2, "starts": 4, "at_once": 6, "soak": 12}
    options = parsed(parser, **small)
    if "soak" in options.parts and not set(options.tools) <= set(_OF_EVERY_SESSION):
        parser.error(f"the part soak calls {' or '.join(_OF_EVERY_SESSION)} alone; --tools has {options.tools}")
    show([{"cores": os.cpu_count() or 1, "load of the last minute": os.getloadavg()[0]}], decimals=2)
    results: dict[str, Any] = {name: measured_parts(options, name) for name in options.tools}
    write_json(options.json, results)


if __name__ == "__main__":
    main()
