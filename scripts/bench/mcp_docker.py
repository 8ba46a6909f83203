"""MCP-Docker: what a session and a call cost, how many it bears at once, and what is left after kills.

python -m scripts.bench.mcp_docker [--quick]                 open sessions, calls per second, sessions per second
python -m scripts.bench.mcp_docker --parts soak              10,000 sessions, a third of them and the gateway twice killed

A session has one tool server: the bundled `calculator`, which is forked, or `light`, the least that is a server, started as a
command. Clients are raw HTTP in this process, so that they cost little. Times are also given as processor time, which other
programs of the machine do not change much: of the gateway, of the tool processes with their wardens, and of the clients.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil

from scripts.bench.left_over import left_over
from scripts.bench.raw_mcp_client import RawSession
from scripts.bench.results import add_json, parsed, show, write_json

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("open", "calls", "start")
LIGHT = Path(__file__).parent / "light_tool_server.py"
LEASE_S = 60  # of sessions whose killed client had no connection open: nothing else tells the gateway
_MB = 1024 * 1024
_SCHEDULED = 2  # of Linux's clocks of processor time (CPUCLOCK_SCHED)


class MeasuredGateway:
    """A gateway in a child process, and what it and its tool processes have used."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        command = ["-I", "-S", str(LIGHT)] if options.tool == "light" else ["-m", "sampler.mcp_docker.tools.calculator"]
        servers = {"tool": {"command": sys.executable, "args": command}}
        (folder / "servers.json").write_text(json.dumps({"mcpServers": servers}))
        self.state = (folder / "state").resolve()
        self._log = (folder / "log").open("a")
        flags = ["--servers", str(folder / "servers.json"), "--port", "0", "--state_folder", str(self.state)]
        flags += ["--isolation", options.isolation, "--readable", json.dumps([str(ROOT)]), "--log_level", "WARNING"]
        flags += ["--max_sessions", "20000", "--warm_sessions", str(options.warm), "--max_calls_per_s", "100000"]
        flags += ["--broken_s", "2", "--max_starting", str(options.starting), "--wait_s", "600", "--start_s", "600"]
        flags += ["--lease_s", str(LEASE_S)]
        self.process = psutil.Popen(
            [sys.executable, "-m", "sampler.mcp_docker", *flags], cwd=ROOT, stdout=subprocess.PIPE, stderr=self._log
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        self.process.stdout.close()
        if not first:
            raise RuntimeError(f"the gateway does not start: {(folder / 'log').read_text()[-2000:]}")
        self.port = int(first)

    def tools(self) -> list[psutil.Process]:
        return list(self.process.children(recursive=True))

    def cpu_s(self) -> tuple[float, float]:
        """Of the gateway; of tool processes, ended ones too."""
        own = self.process.cpu_times()
        tools = own.children_user + own.children_system
        for process in self.tools():
            with contextlib.suppress(psutil.NoSuchProcess, OSError):
                ended = process.cpu_times()
                tools += cpu_clock_s(process.pid) + ended.children_user + ended.children_system
        return cpu_clock_s(self.process.pid), tools

    def kill(self) -> None:
        """Its tool processes end by themselves."""
        self.process.kill()
        self.process.wait()
        self._log.close()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(600)
        except psutil.TimeoutExpired:
            self.kill()
            raise
        self._log.close()


def cpu_clock_s(pid: int) -> float:
    """Processor time of a living process, to the nanosecond: /proc rounds each down to 10 ms, as much as a session costs."""
    return time.clock_gettime(~pid << 3 | _SCHEDULED)


async def measured(
    gateway: MeasuredGateway, what: str, number: int, work: Callable[[], Awaitable[object]]
) -> dict[str, Any]:
    own, tools = gateway.cpu_s()
    mine, began = time.process_time(), time.monotonic()
    await work()
    took_s, used = time.monotonic() - began, time.process_time() - mine
    own_now, tools_now = gateway.cpu_s()
    per = 1000 / number
    return {
        "what": what,
        "number": number,
        "seconds": took_s,
        "per second": number / took_s,
        "gateway CPU ms": (own_now - own) * per,
        "tools CPU ms": (tools_now - tools) * per,
        "client CPU ms": used * per,
    }


async def opened(gateway: MeasuredGateway, number: int, at_once: int) -> list[RawSession]:
    places = asyncio.Semaphore(at_once)

    async def one() -> RawSession:
        async with places:
            session = RawSession(gateway.port)
            await session.open()
            return session

    return list(await asyncio.gather(*(one() for _ in range(number))))


async def ended(sessions: list[RawSession], at_once: int) -> None:
    places = asyncio.Semaphore(at_once)

    async def one(session: RawSession) -> None:
        async with places:
            await session.end()

    await asyncio.gather(*map(one, sessions))


async def calling(sessions: list[RawSession], number: int) -> None:
    async def one(session: RawSession, calls: int) -> None:
        for _ in range(calls):
            await session.call("calculate", {"expression": "6*7"})

    await asyncio.gather(*(one(session, number // len(sessions)) for session in sessions))


def memory(gateway: MeasuredGateway, sessions: int) -> dict[str, Any]:
    tools = gateway.tools()
    pss = sum(found for process in tools if (found := _pss(process)) is not None)
    return {
        "open sessions": sessions,
        "processes": len(tools),
        "gateway MB": gateway.process.memory_info().rss / _MB,
        "gateway files": gateway.process.num_fds(),
        "tools MB per session": pss / _MB / max(1, sessions),
    }


def _pss(process: psutil.Process) -> int | None:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


async def speed(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    gateway = MeasuredGateway(folder, options)
    rows: list[dict[str, Any]] = []
    try:
        if "start" in options.parts:

            async def start_and_end() -> None:
                for _ in range(0, options.starts, options.at_once):
                    await ended(await opened(gateway, options.at_once, options.at_once), options.at_once)

            rows.append(await measured(gateway, "session started, ended", options.starts, start_and_end))
        sessions: list[RawSession] = []

        async def open_all() -> None:
            sessions.extend(await opened(gateway, options.sessions, options.at_once))

        rows.append(await measured(gateway, "session opened", options.sessions, open_all))
        held = memory(gateway, len(sessions))
        if "calls" in options.parts:
            few = sessions[: options.callers]
            await calling(few, len(few))
            rows.append(
                await measured(gateway, f"call, {len(few)} callers", options.calls, lambda: calling(few, options.calls))
            )
            own = await measured(gateway, "second idle", 10, lambda: asyncio.sleep(10 if not options.quick else 0.1))
            held["idle CPU s per s"] = (own["gateway CPU ms"] + own["tools CPU ms"]) * 10 / 1000 / own["seconds"]
        rows.append(
            await measured(gateway, "session ended", options.sessions, lambda: ended(sessions, options.at_once))
        )
        tools = gateway.tools()
        held["processes after"] = len(tools)
    finally:
        gateway.stop()
    show(rows, "MCP-Docker, one tool server per session", decimals=2)
    show([held])
    return {"rows": rows, "memory": held, "left over": left_over(gateway.state, tools)}


class Soak:
    """Waves of sessions; of each wave a third belongs to a process that is killed. The gateway is killed twice."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options, self._folder = options, folder
        self._gateway = MeasuredGateway(folder, options)
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
            await calling(sessions, len(sessions))
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
        self._gateway = MeasuredGateway(self._folder, self._options)


async def until_empty(gateway: MeasuredGateway) -> None:
    """Until the sessions of killed clients have ended by themselves."""
    async with asyncio.timeout(600):
        while (await RawSession(gateway.port).health())["sessions"]:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.2)


def _leave(number: int, frame: object) -> None:
    """SIGTERM ends what was started, as an exception does: the gateway is stopped by `finally`."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> None:
    signal.signal(signal.SIGTERM, _leave)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=(*PARTS, "soak"), default=PARTS)
    parser.add_argument("--sessions", type=int, default=1000, help="open at once")
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--callers", type=int, default=64, help="sessions that call at the same time")
    parser.add_argument("--starts", type=int, default=1000, help="sessions that are started and ended")
    parser.add_argument("--at_once", type=int, default=50, help="sessions that are opened at the same time")
    parser.add_argument("--warm", type=int, default=0, help="warm sets; 0: every start is measured")
    parser.add_argument("--starting", type=int, default=8, help="sets that start at the same time")
    parser.add_argument("--soak", type=int, default=10_000, help="sessions of the soak")
    parser.add_argument("--tool", choices=("light", "calculator"), default="calculator")
    parser.add_argument("--isolation", choices=("process", "bubblewrap"), default="process")
    add_json(parser)
    small = {"sessions": 4, "calls": 40, "callers": 2, "starts": 4, "at_once": 6, "soak": 12}
    options = parsed(parser, **small)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if set(options.parts) & set(PARTS):
            results["speed"] = asyncio.run(speed(options, Path(folder)))
        if "soak" in options.parts:
            results["soak"] = asyncio.run(Soak(options, Path(folder)).run())
    write_json(options.json, results)


if __name__ == "__main__":
    main()
