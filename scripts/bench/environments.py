"""What sessions of environments cost: of a light world over the workers, of worlds that have a process each, of worlds of pixels.

python -m scripts.bench.environments [--parts open processes images] [--sessions 10000] [--steps 20000] [--json FILE] [--quick]

images: an episode of `--frames` steps, whose frames are stored as a sampler stores them, in an embedded MongoDB; CPU of the
service with its worker, and of the storing process with its decoders.
"""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from sampler.core.episode.images import ImageFiles
from sampler.environments.client import EnvironmentClient
from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from scripts.bench.processes import is_alive
from shared.documents.content import references_in
from shared.processes.mongod import Mongod
from shared.store import Store

WORLD = Path(__file__).parent / "light_world.py"
MIB = 1 << 20
REPLY = [{"role": "assistant", "content": "go"}]
NUM_WARM = 8  # sessions that load what every later one shares
MANY_S = 600.0


@dataclass(frozen=True)
class Served:
    url: str
    process: psutil.Process

    def processes(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]

    def cpu_s(self) -> float:
        return float(sum(sum(one.cpu_times()[:2]) for one in self.processes()))

    def memory_mib(self) -> float:
        """Proportional: what processes share counts once."""
        return float(sum(one.memory_full_info().pss for one in self.processes())) / MIB

    async def health(self) -> dict[str, Any]:
        async with httpx.AsyncClient(trust_env=False) as http:
            answer: dict[str, Any] = (await http.get(self.url.removesuffix("/api") + "/health")).json()
        return answer


@asynccontextmanager
async def served(workers: int, capacity: int, *flags: str) -> AsyncIterator[Served]:
    command = [sys.executable, "-m", "sampler.environments"]
    command += ["--environments", f"light={WORLD}:LightWorld,pixels={WORLD}:PixelWorld"]
    command += ["--port", "0", "--workers", str(workers), "--capacity", str(capacity), "--log_level", "ERROR", *flags]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None, "it was made with a pipe"
    try:
        port = int(await process.stdout.readline())
        yield Served(f"http://127.0.0.1:{port}/api", psutil.Process(process.pid))
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def at_once(work: Sequence[Callable[[], Awaitable[Any]]], most: int) -> float:
    """Seconds for all of it, so many at a time."""
    waiting = iter(work)

    async def one() -> None:
        for each in waiting:
            await each()

    begun = time.monotonic()
    await asyncio.gather(*(one() for _ in range(most)))
    return time.monotonic() - begun


async def open_sessions(workers: int, sessions: int, steps: int, callers: int) -> Row:
    client = EnvironmentClient(MANY_S, MANY_S, callers)
    numbers: list[str] = []
    async with served(workers, sessions + NUM_WARM, "--lease_s", str(MANY_S), "--drain_s", "0") as service:
        for number in [(await client.start(service.url, "light", 0, None))[0] for _ in range(NUM_WARM)]:
            await client.cancel(service.url, number)
        before, idle_cpu = service.memory_mib(), service.cpu_s()

        async def start() -> None:
            numbers.append((await client.start(service.url, "light", len(numbers), None))[0])

        start_s = await at_once([start] * sessions, callers)
        cpu, memory = service.cpu_s(), service.memory_mib()
        step_s = await at_once(_by_caller(client, service.url, numbers, steps, callers), callers)
        stepped_cpu = service.cpu_s()
        counted = (await service.health())["sessions"]
        processes = service.processes()
    await client.close()
    return {
        "workers": workers,
        "sessions open": counted,
        "starts/s": sessions / start_s,
        "CPU ms/start": 1000 * (cpu - idle_cpu) / sessions,
        "steps/s": steps / step_s,
        "CPU ms/step": 1000 * (stepped_cpu - cpu) / steps,
        "KiB/session": 1024 * (memory - before) / sessions,
        "MiB": memory,
        "processes left": sum(is_alive(one) for one in processes),
    }


def _by_caller(
    client: EnvironmentClient, url: str, numbers: Sequence[str], steps: int, callers: int
) -> list[Callable[[], Awaitable[Any]]]:
    """Each caller has sessions of its own, which it asks by turns: a session takes one request after the other."""

    def asking(own: Sequence[str]) -> Callable[[], Awaitable[Any]]:
        async def ask() -> None:
            for k in range(steps // min(callers, len(numbers))):
                await client.interact(url, own[k % len(own)], REPLY)

        return ask

    return [asking(numbers[caller::callers]) for caller in range(min(callers, len(numbers)))]


async def process_each(sessions: int) -> Row:
    async with served(sessions, sessions, "--drain_s", "0") as service:
        client = EnvironmentClient(MANY_S, MANY_S, 16)
        numbers = [(await client.start(service.url, "light", k, None))[0] for k in range(sessions)]
        memory, num = service.memory_mib(), len(service.processes())
        spread = Counter((await service.health())["workers"].values())
        step_s = await at_once(_by_caller(client, service.url, numbers, sessions, 16), 16)
        processes = service.processes()
        await client.close()
    return {
        "sessions": sessions,
        "processes": num,
        "sessions of a process": dict(spread),
        "MiB/session": memory / sessions,
        "steps/s": sessions / step_s,
        "processes left": sum(is_alive(one) for one in processes),
    }


async def image_episode(store: Store, kind: str, side: int, frames: int) -> Row:
    client, images = EnvironmentClient(MANY_S, MANY_S, 4), ImageFiles(store)
    task = {"kind": kind, "side": side}
    async with served(1, 8, "--drain_s", "0") as service:
        warm, _ = await client.start(service.url, "pixels", 0, task)
        await images.referenced((await client.interact(service.url, warm, REPLY)).messages)
        files_before, memory = await _stored_bytes(store), service.memory_mib()
        cpu, own_cpu, begun = service.cpu_s(), _own_cpu_s(), time.monotonic()
        number, step = await client.start(service.url, "pixels", 1, task)
        num_images = len(references_in(await images.referenced(step.messages)))
        for _ in range(frames):
            step = await client.interact(service.url, number, REPLY)
            num_images += len(references_in(await images.referenced(step.messages)))
        row = {
            "frames": kind,
            "side": side,
            "images": num_images,
            "stored KB/episode": ((await _stored_bytes(store)) - files_before) / 1000,
            "ms/step": 1000 * (time.monotonic() - begun) / frames,
            "service CPU ms/step": 1000 * (service.cpu_s() - cpu) / frames,
            "storing CPU ms/step": 1000 * (_own_cpu_s() - own_cpu) / frames,
            "service MiB more": service.memory_mib() - memory,
        }
    await client.close()
    return row


async def _stored_bytes(store: Store) -> int:
    total = await store.database["images"].aggregate([{"$group": {"_id": None, "bytes": {"$sum": "$num_bytes"}}}])
    return sum([int(row["bytes"]) async for row in total])


def _own_cpu_s() -> float:
    """With the decoders, and without the service."""
    own = psutil.Process()
    decoders = [child for child in own.children() if "shared.images.worker" in " ".join(child.cmdline())]
    return float(sum(sum(one.cpu_times()[:2]) for one in (own, *decoders)))


async def image_episodes(options: Options) -> list[Row]:
    rows = []
    with Mongod(options.folder / "mongodb") as mongod:
        for kind in ("drawing", "noise"):
            for side in options.sides:
                async with Store.open(mongod.connection_string, f"{kind}-{side}") as store:
                    rows.append(await image_episode(store, kind, side, options.frames))
    return rows


async def measure(options: Options) -> Tables:
    tables: dict[str, list[Row]] = {}
    if "open" in options.parts:
        sizes = sorted({max(1, options.sessions // 100), options.sessions})
        tables["open"] = [await open_sessions(options.workers, n, options.steps, options.callers) for n in sizes]
    if "processes" in options.parts:
        tables["processes"] = [await process_each(options.processes)]
    if "images" in options.parts:
        tables["images"] = await image_episodes(options)
    return tables


if __name__ == "__main__":
    parser = command_line(__doc__)
    parts = ("open", "processes", "images")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--sessions", type=int, default=10_000, help="open: sessions at once")
    parser.add_argument("--steps", type=int, default=20_000, help="open: steps, over all sessions")
    parser.add_argument("--callers", type=int, default=64, help="open: requests at once")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="open: worker processes")
    parser.add_argument("--processes", type=int, default=200, help="processes: sessions, each with its own")
    parser.add_argument("--sides", type=int, nargs="+", default=[64, 256], help="images: width and height in pixels")
    parser.add_argument("--frames", type=int, default=50, help="images: steps of the episode")
    run_benchmark(parser, measure, sessions=40, steps=80, callers=8, workers=2, processes=3, sides=[64], frames=3)
