"""Real gateways in child processes: `python -m sampler.mcp_docker`, and what tests ask of them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from sampler.core.tools import ToolServer
from shared.processes.mongod import free_port

ROOT = Path(__file__).parents[3]
TOOL_SERVERS = ROOT / "tests" / "sampler" / "tool_servers"
PATIENCE_S = 120.0
ACCEPT = "application/json, text/event-stream"
TOKEN = "s3cret-of-the-gateway"


@dataclass
class Gateway:
    process: subprocess.Popen[str]
    port: int
    folder: Path
    log: Path
    token: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def server(self) -> ToolServer:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return ToolServer(name="gateway", url=f"{self.url}/mcp", headers=headers)

    @property
    def folders(self) -> list[Path]:
        """The sessions' folders, of warm sets too."""
        return [path for path in self.folder.iterdir() if path.is_dir()]

    def tools(self) -> list[psutil.Process]:
        """The tool processes, with everything between them and the gateway."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    async def health(self) -> dict[str, Any]:
        async with httpx.AsyncClient() as http:
            found: dict[str, Any] = (await http.get(f"{self.url}/health")).json()
        return found

    async def until(self, **wanted: object) -> dict[str, Any]:
        """Until `/health` says so. Raises AssertionError with what it says instead, and what the gateway logged."""
        end = time.monotonic() + PATIENCE_S
        while not wanted.items() <= (found := await self.health()).items():
            assert time.monotonic() < end, f"{found}\n{self._told()}"
            await asyncio.sleep(0.05)  # another process
        return found

    def _told(self) -> str:
        """Its log, and its processes."""
        return "\n".join([self.log.read_text(), *map(_shown, self.tools())])

    async def until_in_flight(self, number: int) -> None:
        """Until so many requests wait for tools."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        async with asyncio.timeout(PATIENCE_S), httpx.AsyncClient(base_url=self.url, headers=headers) as http:
            while f"tandem_mcp_calls_in_flight {number}\n" not in (await http.get("/metrics")).text:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


async def until_gone(processes: Sequence[psutil.Process]) -> None:
    """Until each has ended, collected by its parent or not: the parent may be the first process of a container."""
    async with asyncio.timeout(PATIENCE_S):
        while any(_lives(process) for process in processes):  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.05)


def _shown(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())[:200]}"
    except psutil.NoSuchProcess:  # or a zombie, which has no command
        return f"{process.pid} has ended"


async def until_running(at: Gateway, *words: str) -> list[psutil.Process]:
    """The tool processes, once each of the words is one of a command: a shell does not wait until what it starts is a program."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            tools = at.tools()
            if set(words) <= {word for tool in tools for word in _words_of(tool)}:
                return tools
            await asyncio.sleep(0.05)  # another process


def _words_of(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def box(name: str = "box") -> dict[str, Any]:
    return {name: {"command": sys.executable, "args": [str(TOOL_SERVERS / "box.py"), "stdio"]}}


@contextmanager
def gateway(
    folder: Path,
    servers: Mapping[str, Any] | None = None,
    *flags: str,
    token: str | None = None,
    level: str = "process",
) -> Iterator[Gateway]:
    """Serves one box unless told otherwise. Its state is in `folder`/state; `folder` may be used again."""
    path = folder / "servers.json"
    path.write_text(json.dumps({"mcpServers": box() if servers is None else servers}))
    state, log = folder / "state", folder / "log"
    # Reserved by this process: a client of another test that still looks for its server cannot come here.
    given = ["--servers", str(path), "--port", str(free_port()), "--state_folder", str(state), "--isolation", level]
    given += ["--readable", str(ROOT), *flags]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TANDEM_")}
    environment |= {"TANDEM_MCP_TOKEN": token} if token else {}
    with log.open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "sampler.mcp_docker", *given],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    first = process.stdout.readline()
    process.stdout.close()
    started = Gateway(process, int(first or 0), state, log, token)
    try:
        assert first, log.read_text()
        yield started
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


class RawClient:
    """One MCP session by hand: for what no client does."""

    def __init__(self, at: Gateway) -> None:
        self.http = httpx.AsyncClient(base_url=at.url, timeout=PATIENCE_S)
        self.headers = {"Accept": ACCEPT, "Content-Type": "application/json"}
        if at.token:
            self.headers["Authorization"] = f"Bearer {at.token}"

    async def open(self, capabilities: Mapping[str, Any] | None = None) -> httpx.Response:
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": dict(capabilities or {}),
            "clientInfo": {"name": "raw", "version": "1"},
        }
        response = await self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        if response.status_code == 200:
            self.headers["Mcp-Session-Id"] = response.headers["mcp-session-id"]
            await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return response

    async def post(self, message: object) -> httpx.Response:
        return await self.http.post("/mcp", json=message, headers=self.headers)

    async def ask(self, method: str, number: int | str = 1, **params: Any) -> dict[str, Any]:
        response = await self.post({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        found: dict[str, Any] = response.json()
        return found

    async def call(self, name: str, number: int | str = 1, **arguments: Any) -> dict[str, Any]:
        return await self.ask("tools/call", number, name=name, arguments=arguments)

    async def close(self) -> int:
        status = (await self.http.delete("/mcp", headers=self.headers)).status_code
        await self.http.aclose()
        return status
