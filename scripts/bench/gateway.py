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

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import psutil

from scripts.bench.measured_gateway import cpu_clock_s
from scripts.bench.remote_agent import CLIENTS_PORT
from scripts.bench.replies import make_tokenizer
from scripts.bench.results import run_parts, show
from scripts.bench.sampler_under_test import EXAMPLE, ROOT, Bench, Row, child, new_task, wait_for_port
from shared.processes.interrupt import run_command
from shared.processes.mongod import Mongod, free_port
from shared.store import Store

GROUP = 4
NAMES = ("sampler", "agents", "gateway")
LEAST = 16  # conversations of a case
CLIENTS = "scripts.bench.agent_clients"
AGENT = "sampler.gateway.agent_sampler:AgentSampler"
PLAYED_S = 900.0
Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Case:
    at_once: int
    tokens: int
    streamed: bool

    @property
    def groups(self) -> int:
        return max(LEAST, self.at_once) // GROUP


@dataclass
class Parties:
    """Each starts what it measures, warms it up, and plays one case with it. CPU in ms per turn."""

    bench: Bench
    options: argparse.Namespace
    seq: int = 0

    async def sampler(self, case: Case) -> float:
        flags = {"sampler": "scripts.bench.sampler_chat:Chat"}
        with self._child("sampler", self.bench.flags(case.at_once) | flags) as process:
            return await self._cost(process, case, self._settled)

    async def agents(self, case: Case) -> float:
        port = free_port()
        flags = {"sampler": AGENT, "agent": "scripts.bench.remote_agent:agent"}
        with self._child(CLIENTS, {"listen": port, "turns": self.bench.turns}, streamed=case.streamed):
            wait_for_port(port)
            environment = {CLIENTS_PORT: str(port)}
            with self._child("sampler", self.bench.flags(case.at_once) | flags, environment) as process:
                return await self._cost(process, case, self._settled)

    async def gateway(self, case: Case) -> float:
        with self.gateway_process(case.at_once) as (process, url):

            async def played(groups: int) -> None:
                await self.clients(url, case, groups)
                await self._settled(groups)

            return await self._cost(process, case, played)

    @contextmanager
    def gateway_process(self, at_once: int) -> Iterator[tuple[Process, str]]:
        port = free_port()
        with self._child("sampler.gateway", self.bench.flags(at_once) | {"gateway_port": port}) as process:
            wait_for_port(port)
            yield process, f"http://127.0.0.1:{port}"

    async def clients(self, url: str, case: Case, groups: int) -> None:
        number = groups * GROUP
        flags = {"url": url, "number": number, "at-once": min(number, case.at_once), "turns": self.bench.turns}
        with self._child(CLIENTS, flags, streamed=case.streamed) as process:
            try:
                status = await asyncio.to_thread(process.wait, PLAYED_S)
            except subprocess.TimeoutExpired:
                status = None
        if status != 0:
            raise SystemExit(f"the clients' status is {status}\n{self.bench.log_tail(CLIENTS)}")

    # ------------------------------------------------------------------ inside

    async def _cost(self, process: Process, case: Case, played: Callable[[int], Awaitable[None]]) -> float:
        await self.add(1)
        await played(1)
        turns, began = await self._turns(), cpu_clock_s(process.pid)
        await self.add(case.groups)
        await played(case.groups)
        used, turns = cpu_clock_s(process.pid) - began, await self._turns() - turns
        expected = case.groups * GROUP * self.bench.turns
        if turns != expected:
            raise SystemExit(f"{turns} turns were sampled; expected {expected}: see the logs in {self.bench.folder}")
        return used / turns * 1e3

    async def add(self, groups: int) -> None:
        """New tasks. A sampler begins with them at once."""
        new = [new_task(self.seq + number, GROUP) for number in range(groups)]
        self.seq += groups
        await self.bench.store.tasks.insert_new(new)

    async def _settled(self, groups: int) -> None:
        async def all_settled() -> bool:
            return await self.bench.store.database["tasks"].count_documents({"status": "settled"}) == self.seq

        await self.bench.until(all_settled, PLAYED_S)

    async def _turns(self) -> int:
        return await self.bench.played()

    @contextmanager
    def _child(
        self, module: str, flags: dict[str, object], added: dict[str, str] | None = None, *, streamed: bool = False
    ) -> Iterator[Process]:
        switches = ("--streamed",) if streamed else ()
        with child(module, flags, self.bench.folder, added or {}, switches) as process:
            self.bench.running |= {module: process} if module != CLIENTS else {}
            try:
                yield process
            finally:
                self.bench.running.pop(module, None)


# ------------------------------------------------------------------ parts


async def turns(parties: Parties, cases: list[Case], rounds: int) -> list[Row]:
    rows = []
    for case in cases:
        found: dict[str, list[float]] = {name: [] for name in NAMES}
        for _, name in product(range(rounds), NAMES):
            found[name].append(await measured(parties, case, name))
        costs = {name: statistics.median(each) for name, each in found.items()}
        rows.append(_row(case, costs))
        show(rows[-1:], decimals=2)
    return rows


async def measured(parties: Parties, case: Case, name: str) -> float:
    bench = parties.bench
    bench.tokens, parties.seq = case.tokens, 0
    bench.engine_flags = {"token-ms": str(parties.options.token_ms)} if case.streamed else {}
    await bench.fill(0)
    with bench.engine():
        await bench.register()
        cost: float = await getattr(parties, name)(case)
        return cost


def _row(case: Case, costs: dict[str, float]) -> Row:
    row: Row = {"at once": case.at_once, "tokens": case.tokens, "streamed": "yes" if case.streamed else "no"}
    row |= {f"{name} ms": cost for name, cost in costs.items()}
    row |= {f"{name} - sampler": costs[name] - costs["sampler"] for name in ("agents", "gateway")}
    return row


async def open_at_once(parties: Parties, number: int, tokens: int) -> list[Row]:
    bench = parties.bench
    bench.tokens, bench.engine_flags, parties.seq = tokens, {}, 0
    await bench.fill(0)
    with bench.engine():
        await bench.register()
        await parties.add(-(-number // GROUP))
        with parties.gateway_process(number) as (process, url):
            await parties.add(1)
            await parties.clients(url, Case(GROUP, tokens, streamed=False), 1)  # what is loaded with the first request
            return [{"sessions": number, "tokens": tokens, **await _held(process, url, number)}]


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
        for said in (b"claimed\n", b"played\n"):
            if await clients.stdout.readline() != said:
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


# ------------------------------------------------------------------ the program


async def run(options: argparse.Namespace) -> dict[str, list[Row]]:
    numbers, tokens = ([int(n) for n in getattr(options, name).split(",")] for name in ("at_once", "tokens"))
    streams = [{"no": False, "yes": True}[word] for word in options.streams.split(",")]
    cases = [Case(*each) for each in product(numbers, tokens, streams)]
    found: dict[str, list[Row]] = {}
    async with AsyncExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench_gateway")))
        folder.mkdir(parents=True, exist_ok=True)
        mongod = stack.enter_context(Mongod(folder / "mongodb"))
        store = await stack.enter_async_context(Store.open(mongod.connection_string, "bench"))
        bench = Bench(mongod, store, folder, make_tokenizer(EXAMPLE, folder / "model"), "", turns=options.turns)
        parties = Parties(bench, options)
        if "turns" in options.parts.split(","):
            found["turns"] = await turns(parties, cases, options.rounds)
        if "open" in options.parts.split(","):
            found["open"] = await open_at_once(parties, options.open, tokens[0])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="turns,open")
    parser.add_argument("--at-once", default="1,64,512", help="conversations (default: %(default)s)")
    parser.add_argument("--tokens", default="20,500", help="of a reply (default: %(default)s)")
    parser.add_argument("--streams", default="no,yes")
    parser.add_argument("--turns", type=int, default=10, help="of a conversation (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="of each case; the median counts (default: %(default)s)")
    parser.add_argument("--token-ms", type=float, default=1.0, help="of streams (default: %(default)s)")
    parser.add_argument("--open", type=int, default=2000, help="attempts, of `open` (default: %(default)s)")
    run_parts(parser, run, 160, at_once="4", tokens="20", streams="yes", turns=2, token_ms=0.1, open=8)


if __name__ == "__main__":
    run_command(main)
