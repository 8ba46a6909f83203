"""A gateway of MCP-Docker in a child process: what it and its tool processes use, what it leaves, and raw clients' sessions."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path

import psutil

from scripts.bench.harness import Options, Row
from scripts.bench.measured_tools import MeasuredTool
from scripts.bench.processes import ROOT, cpu_s, is_alive
from scripts.bench.raw_http import RawConnection
from scripts.bench.raw_mcp_client import RawSession
from shared.processes.guarded import MARK
from shared.sandbox import cgroups
from shared.sandbox.folders import folder_key

LEASE_S = 60  # of sessions whose killed client had no connection open: nothing else tells the gateway
_MB = 1024 * 1024


class MeasuredGateway:
    def __init__(self, folder: Path, options: Options, tool: MeasuredTool) -> None:
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
                tools += cpu_s(process.pid) + ended.children_user + ended.children_system
        return cpu_s(self.process.pid), tools

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


async def measured(gateway: MeasuredGateway, what: str, number: int, work: Callable[[], Awaitable[object]]) -> Row:
    """Processor time of one of the `number` things that the work does."""
    gateway_before, tools_before = gateway.cpu_s()
    client_before, began = time.process_time(), time.monotonic()
    await work()
    took_s, client_s = time.monotonic() - began, time.process_time() - client_before
    gateway_s, tools_s = gateway.cpu_s()
    return {
        "what": what,
        "number": number,
        "seconds": took_s,
        "per second": number / took_s,
        "gateway CPU ms": (gateway_s - gateway_before) * 1000 / number,
        "tools CPU ms": (tools_s - tools_before) * 1000 / number,
        "client CPU ms": client_s * 1000 / number,
    }


async def opened(gateway: MeasuredGateway, number: int, at_once: int) -> list[RawSession]:
    sessions = [RawSession(gateway.port) for _ in range(number)]
    await _each(sessions, RawSession.open, at_once)
    return sessions


async def ended(sessions: list[RawSession], at_once: int) -> None:
    await _each(sessions, RawSession.end, at_once)


async def _each(sessions: list[RawSession], work: Callable[[RawSession], Awaitable[None]], at_once: int) -> None:
    places = asyncio.Semaphore(at_once)

    async def one(session: RawSession) -> None:
        async with places:
            await work(session)

    await asyncio.gather(*map(one, sessions))


async def calling(sessions: list[RawSession], number: int, tool: MeasuredTool) -> None:
    async def one(session: RawSession, calls: int) -> None:
        for _ in range(calls):
            answer = await session.call(tool.call, tool.arguments)
            if answer.get("isError") or tool.expected not in answer["content"][0]["text"]:
                raise RuntimeError(f"{tool.call} answers with {str(answer)[:300]}; expected {tool.expected!r}")

    await asyncio.gather(*(one(session, number // len(sessions)) for session in sessions))


def memory(gateway: MeasuredGateway, sessions: int) -> Row:
    tools = gateway.tools()
    pss = sum(map(_pss, tools))
    return {
        "open sessions": sessions,
        "processes": len(tools),
        "gateway MB": gateway.process.memory_info().rss / _MB,
        "gateway files": gateway.process.num_fds(),
        "tools MB per session": pss / _MB / max(1, sessions),
    }


def _pss(process: psutil.Process) -> int:
    """0 where it has ended, or is another user's."""
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


async def until_empty(gateway: MeasuredGateway) -> None:
    """Until the sessions of killed clients have ended by themselves."""
    async with asyncio.timeout(600):
        while await _num_sessions(gateway):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.2)


async def _num_sessions(gateway: MeasuredGateway) -> int:
    with contextlib.closing(RawConnection("127.0.0.1", gateway.port)) as connection:
        health = json.loads((await connection.send("GET", "/health"))[1])
    return int(health["sessions"])


def left_over(state: Path, known: Iterable[psutil.Process] = ()) -> dict[str, int]:
    """Processes, folders and cgroups of a gateway that has ended, by its own state folder: other gateways of the machine do not
    count. `known`: processes that a gateway of this folder had."""
    alive = {process.pid for process in (*_marked(state), *filter(is_alive, known))}
    return {
        "processes": len(alive - {os.getpid()}),
        "folders": sum(path.is_dir() for path in state.iterdir()),
        "cgroups": len(cgroups.left_over(folder_key(state))),
    }


def _marked(state: Path) -> Iterator[psutil.Process]:
    """Wardens, tools and the process that forks carry the folder's mark; a gateway is started with the folder's path."""
    mark = folder_key(state) + "-"
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
            if str(state) in process.cmdline() or process.environ().get(MARK, "").startswith(mark):
                yield process
