"""A gateway of MCP-Docker in a child process, what it and its tool processes use, and sessions of raw clients with it."""

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil

from scripts.bench.measured_tools import MeasuredTool
from scripts.bench.raw_mcp_client import RawSession

ROOT = Path(__file__).resolve().parents[2]
LEASE_S = 60  # of sessions whose killed client had no connection open: nothing else tells the gateway
_MB = 1024 * 1024
_SCHEDULED = 2  # of Linux's clocks of processor time (CPUCLOCK_SCHED)


class MeasuredGateway:
    """A gateway in a child process, and what it and its tool processes have used."""

    def __init__(self, folder: Path, options: argparse.Namespace, tool: MeasuredTool) -> None:
        (folder / "servers.json").write_text(json.dumps(tool.servers))
        self.state = (folder / "state").resolve()
        self._log = (folder / "log").open("a")
        flags = ["--servers", str(folder / "servers.json"), "--port", "0", "--state_folder", str(self.state)]
        flags += ["--isolation", options.isolation, "--readable", json.dumps([str(ROOT)]), "--log_level", "WARNING"]
        flags += ["--max_sessions", "20000", "--warm_sessions", str(options.warm), "--max_calls_per_s", "100000"]
        flags += ["--broken_s", "2", "--max_starting", str(options.starting), "--wait_s", "600", "--start_s", "600"]
        flags += ["--lease_s", str(LEASE_S), *tool.flags]
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


async def calling(sessions: list[RawSession], number: int, tool: MeasuredTool) -> None:
    async def one(session: RawSession, calls: int) -> None:
        for _ in range(calls):
            answer = await session.call(tool.call, tool.given)
            if answer.get("isError") or tool.says not in answer["content"][0]["text"]:
                raise RuntimeError(f"{tool.call} answers with {str(answer)[:300]}; expected {tool.says!r}")

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


async def until_empty(gateway: MeasuredGateway) -> None:
    """Until the sessions of killed clients have ended by themselves."""
    async with asyncio.timeout(600):
        while (await RawSession(gateway.port).health())["sessions"]:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.2)
