"""What `scripts.bench.sampler` measures: one sampler process, the stub engine, the tool server, a mongod, what they use."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from scripts.bench.counted_sampler import COLLECTIONS, COMMANDS_FILE
from shared.documents import Slot, Task, TaskPayload, task_id
from shared.documents.run import InferenceService
from shared.documents.states import ServiceStatus
from shared.names import TRAIN_SPLIT
from shared.processes.mongod import Mongod, free_port
from shared.store import Store
from shared.store.pipelines import EPOCH

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "assets" / "example" / "model"
TOOL_CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>'
GROUP = 8
OWN_COMMANDS = {"serverStatus", "hello", "ping", "isMaster"}  # ours, and the drivers' heartbeats
Row = dict[str, Any]


@dataclass
class Bench:
    """One database, one stub engine and one sampler process at a time."""

    mongod: Mongod
    store: Store
    folder: Path
    model: Path
    tools_url: str
    turns: int = 10
    tokens: int = 20
    kind: str = "chat"
    engine_flags: dict[str, str] = field(default_factory=dict)
    engine_port: int = 0
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)  # by module

    @property
    def engine_url(self) -> str:
        return f"http://127.0.0.1:{self.engine_port}"

    async def fill(self, groups: int) -> None:
        """Nothing but `groups` new tasks."""
        for name in (*COLLECTIONS, "inference_services"):
            await self.store.database.drop_collection(name)
        await self.store.ensure_indexes()
        await self.store.tasks.insert_new([new_task(seq) for seq in range(groups)])

    async def register(self, capacity: int = 4096) -> None:
        """By hand: a keeper would add its own commands to the count."""
        service = InferenceService(
            id=self.engine_url,
            url=self.engine_url,
            policy="main",
            version=0,
            status=ServiceStatus.UP,
            capacity=capacity,
            heartbeat_s=3600,
        )
        await self.store.services.heartbeat(service)

    @contextmanager
    def engine(self) -> Iterator[None]:
        self.engine_port = free_port()
        flags = {"model-path": str(self.model), "port": self.engine_port, "tokens": self.tokens, "turns": self.turns}
        flags |= {"tool-call": TOOL_CALL if self.kind == "mcp" else "", **self.engine_flags}
        with self.child("scripts.bench.stub_engine", {name: value for name, value in flags.items() if value}):
            wait_for_port(self.engine_port)
            yield

    def flags(self, at_once: int) -> dict[str, object]:
        """Of a sampler without tools, and of a gateway."""
        return {
            "run": self.store.run,
            "db_connection_string": self.mongod.connection_string,
            "model_name_or_path": self.model,
            "max_concurrent_episodes": at_once,
            "max_turns": self.turns,
            "max_new_tokens": self.tokens,
            "max_tokens": 1 << 20,
            "adaptive_concurrency": False,
            "open_all_tasks": True,
            "grace_s": 0.1,
            "log_level": "WARNING",
        }

    @contextmanager
    def sampler(self, at_once: int) -> Iterator[psutil.Process]:
        flags = self.flags(at_once)
        if self.kind == "mcp":
            flags["mcp_manager_url"] = self.tools_url
        else:
            flags["sampler"] = "scripts.bench.sampler_chat:Chat"
        with self.child("scripts.bench.counted_sampler", flags) as process:
            yield psutil.Process(process.pid)

    def commands(self) -> int:
        """Of the last sampler, which has ended, to the collections of episodes."""
        return int(self._commands_file.read_text())

    @property
    def _commands_file(self) -> Path:
        return self.folder / "commands"

    @contextmanager
    def child(self, module: str, flags: dict[str, object]) -> Iterator[subprocess.Popen[bytes]]:
        with child(module, flags, self.folder, {COMMANDS_FILE: str(self._commands_file)}) as process:
            self.running[module] = process
            try:
                yield process
            finally:
                del self.running[module]

    async def stats(self) -> dict[str, int]:
        async with httpx.AsyncClient(timeout=10) as client:
            found: dict[str, int] = (await client.get(f"{self.engine_url}/stats")).json()
            return found

    async def played(self) -> int:
        return int((await self.stats()).get("/generate", 0))

    async def until(self, ready: Any, timeout_s: float = 180.0) -> None:
        """Ask until the answer is yes. Ends the program when it never is, or when a process dies that it needs."""
        deadline = time.monotonic() + timeout_s
        while not await ready():
            for module, process in self.running.items():
                if process.poll() is not None:
                    raise SystemExit(f"{module} ended with status {process.returncode}:\n{self.log_tail(module)}")
            if time.monotonic() > deadline:
                tails = "\n".join(self.log_tail(module) for module in self.running)
                raise SystemExit(f"timed out after {timeout_s:g} s\n{tails}")
            await asyncio.sleep(0.1)

    def log_tail(self, module: str) -> str:
        path = self.folder / f"{module}.log"
        return f"--- the end of {path}\n{path.read_text(errors='replace')[-1500:]}"

    async def server_status(self) -> tuple[int, int, int]:
        """Commands, bytes in, bytes out since the server's start; our own commands left out."""
        status = await self.store.client.admin.command("serverStatus")
        done = {n: c["total"] for n, c in status["metrics"]["commands"].items() if isinstance(c, dict) and "total" in c}
        commands = sum(total for name, total in done.items() if name not in OWN_COMMANDS)
        return commands, status["network"]["bytesIn"], status["network"]["bytesOut"]


def new_task(seq: int, group: int = GROUP) -> Task:
    return Task(
        id=task_id("main", TRAIN_SPLIT, 0, f"t{seq}"),
        tid=f"t{seq}",
        split=TRAIN_SPLIT,
        epoch=0,
        policy="main",
        seq=seq,
        source="bench",
        payload=TaskPayload(query="What is 2+2?", answer="4"),
        num_generations=group,
        slots=[Slot(traj_id=k, free_at=EPOCH) for k in range(group)],
        free_at=EPOCH,
    )


@contextmanager
def child(
    module: str, flags: dict[str, object], folder: Path, added: dict[str, str], switches: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | added
    command = [
        sys.executable,
        "-m",
        module,
        *(part for name, value in flags.items() for part in (f"--{name}", str(value))),
        *switches,
    ]
    with (folder / f"{module}.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=environment)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


def wait_for_port(port: int, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)  # no event tells that a child listens on its port


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def tool_server(port: int, folder: Path) -> Iterator[None]:
    command = [sys.executable, str(ROOT / "assets" / "example" / "tool_server.py"), "--port", str(port)]
    with (folder / "tools.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_for_port(port)
            yield
        finally:
            process.terminate()
            process.wait(30)
