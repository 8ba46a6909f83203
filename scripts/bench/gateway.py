"""What a turn through the gateway costs, against our own sampler's.

    python -m scripts.bench.gateway [--parts turns,open] [--at-once 1,64,512] [--tokens 20,500] [--streams no,yes] [--turns 10]
                                    [--rounds 1] [--token-ms 1] [--open 2000] [--json FILE] [--quick]

    turns     CPU per turn (user and system, of the measured process alone) of the same conversations, by turns:
                sampler   our own sampler class (`scripts.bench.sampler_chat`), which talks to no agent
                agents    a sampler process whose agents are functions that hand over to a client in another process
                gateway   `python -m sampler.gateway`; clients in another process claim, play and finish
    open      attempts that are open at once in one gateway process: its memory before, claimed, and after a turn of each

Real: a mongod, the processes, HTTP. The engine (`scripts.bench.stub_engine`) and the clients (raw HTTP, the whole history
with each request, one connection per conversation) are processes of their own. So many conversations as run at once, at least
16, are played from the first claim to the last settled group, after a group that warms up. Without streams the engine answers
at once; with streams, and for the sampler that these are compared with, it takes `--token-ms` per token.
"""

import asyncio
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import product

import psutil

from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from scripts.bench.processes import ROOT, child, cpu_s, wait_for_port
from scripts.bench.remote_agent import CLIENTS_PORT
from scripts.bench.sampler_under_test import PLAYED_S, Bench, new_task, opened_bench
from shared.processes.mongod import free_port

GROUP = 4
LEAST = 16  # conversations of a case
CLIENTS = "scripts.bench.agent_clients"
AGENT = "sampler.gateway.agent_sampler:AgentSampler"
Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Case:
    at_once: int
    tokens: int
    streamed: bool

    @property
    def groups(self) -> int:
        return max(LEAST, self.at_once) // GROUP


async def measure(options: Options) -> Tables:
    at_once, tokens = ([int(number) for number in text.split(",")] for text in (options.at_once, options.tokens))
    streams = [{"no": False, "yes": True}[word] for word in options.streams.split(",")]
    tables: dict[str, list[Row]] = {}
    async with opened_bench(options.folder) as bench:
        bench.turns = options.turns
        parties = Parties(bench, options)
        if "turns" in options.parts.split(","):
            cases = [Case(*each) for each in product(at_once, tokens, streams)]
            tables["turns"] = [await parties.compared(case) for case in cases]
        if "open" in options.parts.split(","):
            tables["open"] = [await parties.open_at_once(options.open, tokens[0])]
    return tables


@dataclass
class Parties:
    """Each starts what it measures, warms it up, and plays one case with it. CPU in ms per turn."""

    bench: Bench
    options: Options
    seq: int = 0

    async def compared(self, case: Case) -> Row:
        """The median of the rounds."""
        costs: dict[str, list[float]] = {"sampler": [], "agents": [], "gateway": []}
        for _, (name, measured) in product(range(self.options.rounds), costs.items()):
            await self._begin(case.tokens, {"token-ms": str(self.options.token_ms)} if case.streamed else {})
            with self.bench.engine():
                await self.bench.register()
                measured.append(await getattr(self, name)(case))
        medians = {name: statistics.median(each) for name, each in costs.items()}
        row: Row = {"at once": case.at_once, "tokens": case.tokens, "streamed": "yes" if case.streamed else "no"}
        row |= {f"{name} ms": cost for name, cost in medians.items()}
        row |= {f"{name} - sampler": medians[name] - medians["sampler"] for name in ("agents", "gateway")}
        sys.stderr.write(f"{row}\n")
        return row

    async def sampler(self, case: Case) -> float:
        flags = {"sampler": "scripts.bench.sampler_chat:Chat"}
        with self.bench.child("sampler", self.bench.flags(case.at_once) | flags) as process:
            return await self._cost(process, case, self._settled)

    async def agents(self, case: Case) -> float:
        port = free_port()
        flags = {"sampler": AGENT, "agent": "scripts.bench.remote_agent:agent"}
        with self._clients({"listen": port, "turns": self.bench.turns}, case):
            wait_for_port(port)
            environment = {CLIENTS_PORT: str(port)}
            with self.bench.child("sampler", self.bench.flags(case.at_once) | flags, environment) as process:
                return await self._cost(process, case, self._settled)

    async def gateway(self, case: Case) -> float:
        with self._gateway(case.at_once) as (process, url):

            async def played(groups: int) -> None:
                await self._played_by_clients(url, case, groups)
                await self._settled(groups)

            return await self._cost(process, case, played)

    async def open_at_once(self, number: int, tokens: int) -> Row:
        await self._begin(tokens, {})
        with self.bench.engine():
            await self.bench.register()
            await self._add(-(-number // GROUP) + 1)
            with self._gateway(number) as (process, url):
                # What is loaded with the first request.
                await self._played_by_clients(url, Case(GROUP, tokens, streamed=False), 1)
                return {"sessions": number, "tokens": tokens, **await _held(process, url, number)}

    # ------------------------------------------------------------------ inside

    async def _begin(self, tokens: int, engine_flags: dict[str, str]) -> None:
        self.bench.tokens, self.bench.engine_flags, self.seq = tokens, engine_flags, 0
        await self.bench.fill(0)

    async def _cost(self, process: Process, case: Case, played: Callable[[int], Awaitable[None]]) -> float:
        await self._add(1)
        await played(1)
        turns_before, cpu_before = await self.bench.played(), cpu_s(process.pid)
        await self._add(case.groups)
        await played(case.groups)
        used, turns = cpu_s(process.pid) - cpu_before, await self.bench.played() - turns_before
        expected = case.groups * GROUP * self.bench.turns
        if turns != expected:
            raise SystemExit(f"{turns} turns were sampled; expected {expected}: see the logs in {self.bench.folder}")
        return used / turns * 1e3

    async def _add(self, groups: int) -> None:
        """New tasks. A sampler begins with them at once."""
        new = [new_task(self.seq + number, GROUP) for number in range(groups)]
        self.seq += groups
        await self.bench.store.tasks.insert_new(new)

    async def _settled(self, groups: int) -> None:
        async def all_settled() -> bool:
            return await self.bench.store.database["tasks"].count_documents({"status": "settled"}) == self.seq

        await self.bench.until(all_settled, PLAYED_S)

    @contextmanager
    def _gateway(self, at_once: int) -> Iterator[tuple[Process, str]]:
        port = free_port()
        with self.bench.child("sampler.gateway", self.bench.flags(at_once) | {"gateway_port": port}) as process:
            wait_for_port(port)
            yield process, f"http://127.0.0.1:{port}"

    async def _played_by_clients(self, url: str, case: Case, groups: int) -> None:
        number = groups * GROUP
        flags = {"url": url, "number": number, "at-once": min(number, case.at_once), "turns": self.bench.turns}
        with self._clients(flags, case) as process:
            try:
                status = await asyncio.to_thread(process.wait, PLAYED_S)
            except subprocess.TimeoutExpired:
                status = None
        if status != 0:
            raise SystemExit(f"the clients' status is {status}\n{self.bench.log_tail(CLIENTS)}")

    def _clients(self, flags: dict[str, object], case: Case) -> AbstractContextManager[Process]:
        return child(CLIENTS, flags, self.bench.folder, switches=("--streamed",) * case.streamed)


async def _held(process: Process, url: str, number: int) -> Row:
    await asyncio.sleep(2)  # its loops have begun
    before = _rss(process)
    command = [sys.executable, "-m", CLIENTS, "--url", url, "--number", str(number), "--turns", "1", "--hold"]
    clients = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert clients.stdin is not None
    assert clients.stdout is not None
    try:
        rss = [before]
        for line in (b"claimed\n", b"played\n"):
            if await clients.stdout.readline() != line:
                raise SystemExit("the clients ended; they have printed why")
            rss.append(_rss(process))
            clients.stdin.write(b"\n")
    finally:
        if clients.returncode is None:
            clients.kill()
        await clients.wait()
    claimed, played = ((each - before) / number / 1024 for each in rss[1:])
    return {"MiB before": before / 2**20, "MiB after": rss[2] / 2**20, "KiB/claimed": claimed, "KiB/played": played}


def _rss(process: Process) -> int:
    return int(psutil.Process(process.pid).memory_info().rss)


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--parts", default="turns,open")
    parser.add_argument("--at-once", default="1,64,512", help="conversations (default: %(default)s)")
    parser.add_argument("--tokens", default="20,500", help="of a reply (default: %(default)s)")
    parser.add_argument("--streams", default="no,yes")
    parser.add_argument("--turns", type=int, default=10, help="of a conversation (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="of each case; the median counts (default: %(default)s)")
    parser.add_argument("--token-ms", type=float, default=1.0, help="of streams (default: %(default)s)")
    parser.add_argument("--open", type=int, default=2000, help="attempts, of `open` (default: %(default)s)")
    run_benchmark(parser, measure, at_once="4", tokens="20", streams="yes", turns=2, token_ms=0.1, open=8)
