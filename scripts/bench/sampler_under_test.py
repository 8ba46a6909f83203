"""What benchmarks of samplers and gateways measure: one process of ours, the stub engine, the tool server, a mongod."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from scripts.bench.counted_sampler import COLLECTIONS, COUNTS_FILE
from scripts.bench.processes import ROOT, child, started, wait_for_port
from scripts.bench.replies import make_tokenizer
from scripts.bench.sampler_chat import WORDS
from shared.documents import Slot, Task, TaskPayload, task_id
from shared.documents.run import InferenceService
from shared.documents.states import ServiceStatus
from shared.names import TRAIN_SPLIT
from shared.processes.mongod import Mongod, free_port
from shared.store import Store
from shared.store.pipelines import EPOCH

EXAMPLE = ROOT / "assets" / "example" / "model"
TOOL_CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>'
GROUP = 8
PLAYED_S = 900.0  # for the groups of a case
OWN_COMMANDS = {"serverStatus", "hello", "ping", "isMaster"}  # ours, and the drivers' heartbeats


@dataclass
class Bench:
    """One database, one stub engine and one sampler or gateway at a time. `running`: processes that it needs, by module."""

    mongod: Mongod
    store: Store
    folder: Path
    model: Path
    turns: int = 10
    tokens: int = 20
    kind: str = "chat"
    words: int = 0  # of the user, in each turn of a chat
    engine_flags: dict[str, str] = field(default_factory=dict)
    engine_port: int = 0
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def engine_url(self) -> str:
        return f"http://127.0.0.1:{self.engine_port}"

    async def fill(self, groups: int) -> None:
        """Nothing but `groups` new tasks, of a run without rules yet."""
        for name in (*COLLECTIONS, "inference_services", "run_rules"):
            await self.store.database.drop_collection(name)
        await self.store.ensure_indexes()
        if groups:
            await self.add(groups)

    async def add(self, groups: int) -> None:
        """Tasks, to a run without any."""
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
        """Of a sampler without tools, or of a gateway."""
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
    def sampler(self, at_once: int) -> Iterator[int]:
        """Its process's id. Episodes of kind `mcp` call a tool of the bundled tool server in every turn."""
        port = free_port()
        how = {"sampler": "scripts.bench.sampler_chat:Chat"}
        if self.kind == "mcp":
            how = {"mcp_manager_url": f"http://127.0.0.1:{port}/mcp"}
        counted = {COUNTS_FILE: str(self._counts_file), WORDS: str(self.words)}
        with (
            tool_server(port, self.folder),
            self.child("scripts.bench.counted_sampler", self.flags(at_once) | how, counted) as process,
        ):
            yield process.pid

    def counts(self) -> dict[str, int]:
        """Of the last sampler, which has ended: see `counted_sampler`."""
        counts: dict[str, int] = json.loads(self._counts_file.read_text())
        return counts

    @property
    def _counts_file(self) -> Path:
        return self.folder / "counts.json"

    @contextmanager
    def child(
        self,
        module: str,
        flags: Mapping[str, object],
        environment: Mapping[str, str] | None = None,
        *,
        switches: Sequence[str] = (),
    ) -> Iterator[subprocess.Popen[bytes]]:
        with child(module, flags, self.folder, environment, switches=switches) as process:
            self.running[module] = process
            try:
                yield process
            finally:
                del self.running[module]

    async def stats(self) -> dict[str, int]:
        async with httpx.AsyncClient(timeout=10) as client:
            counts: dict[str, int] = (await client.get(f"{self.engine_url}/stats")).json()
            return counts

    async def played(self) -> int:
        return int((await self.stats()).get("/generate", 0))

    async def completed(self) -> int:
        """Of another project's client."""
        return int((await self.stats()).get("/v1/chat/completions", 0))

    async def until(self, ready: Callable[[], Awaitable[bool]], timeout_s: float = 180.0) -> None:
        """Until `ready` is true. Ends the program when it never is, or when a process dies that it needs."""
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


@asynccontextmanager
async def opened_bench(folder: Path) -> AsyncIterator[Bench]:
    model = make_tokenizer(EXAMPLE, folder / "model")
    with Mongod(folder / "mongodb") as mongod:
        async with Store.open(mongod.connection_string, "bench") as store:
            yield Bench(mongod, store, folder, model)


@contextmanager
def tool_server(port: int, folder: Path) -> Iterator[None]:
    command = [sys.executable, str(ROOT / "assets" / "example" / "tool_server.py"), "--port", str(port)]
    with started(command, folder / "tools.log"):
        wait_for_port(port)
        yield
