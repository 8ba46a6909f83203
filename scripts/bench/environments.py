"""What sessions of environments cost, and what is left after trouble. `--quick` runs it with the smallest sizes.

open       sessions of a light world over the workers: starts/s, steps/s, processor time, memory of a session
processes  sessions that have a process each
trouble    episodes by the sampler's own client, through a service with too little room, while workers are killed and
               others are slow: no failure for want of room, and nothing left

python -m scripts.bench.environments --sessions 10000 --steps 20000
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from sampler.environments.choosing import Environments
from sampler.environments.client import EnvironmentClient
from sampler.environments.play_config import EnvironmentPlayConfig
from sampler.environments.session import EnvironmentSession
from sampler.errors import EnvironmentBusy, EnvironmentFailed
from scripts.bench.results import Parts, run_parts
from shared.documents.run import EnvironmentService

WORLD = Path(__file__).parent / "light_world.py"
MIB = 1 << 20
REPLY = [{"role": "assistant", "content": "go"}]
SLOW_S = 0.2
NUM_STEPS = 4  # of an episode in trouble
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
            found: dict[str, Any] = (await http.get(self.url.removesuffix("/api") + "/health")).json()
        return found


@asynccontextmanager
async def served(workers: int, capacity: int, *flags: str) -> AsyncIterator[Served]:
    command = [sys.executable, "-m", "sampler.environments", "--environments", f"light={WORLD}:LightWorld"]
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


async def open_sessions(workers: int, sessions: int, steps: int, callers: int) -> dict[str, Any]:
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
        "processes left": sum(_lives(one) for one in processes),
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


async def process_each(sessions: int) -> dict[str, Any]:
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
        "processes left": sum(_lives(one) for one in processes),
    }


async def trouble(episodes: int, capacity: int, kills: int) -> dict[str, Any]:
    """Each episode is played until it ends well, as slots are; its failures and waits are counted."""
    counts: Counter[str] = Counter()
    async with served(4, capacity, "--max_starting", "8", "--wait_s", "1") as service, AsyncExitStack() as ending:
        listed = [EnvironmentService(id="s", url=service.url, kinds=["light"], capacity=10 * capacity)]

        async def look() -> list[EnvironmentService]:
            return listed

        config = EnvironmentPlayConfig(environment_wait_s=5.0)
        places = Environments(look, config)
        ending.push_async_callback(places.close)
        killer = asyncio.create_task(_kill_workers(service, kills))
        begun = time.monotonic()
        await asyncio.gather(*(_episode(places, k, counts) for k in range(episodes)))
        seconds = time.monotonic() - begun
        counts["kills"] = await killer
        found = await service.health()
        processes = service.processes()
    return {
        "episodes": episodes,
        "capacity": capacity,
        "played": counts["played"],
        "released without a failure": counts["busy"],
        "workers killed": counts["kills"],
        "failed with a worker": counts["lost"],
        "failed otherwise": counts["failed"],
        "seconds": seconds,
        "sessions left": found["sessions"],
        "processes left": sum(_lives(one) for one in processes),
    }


async def _episode(places: Environments, number: int, counts: Counter[str]) -> None:
    slow = {"slow_s": SLOW_S} if number % 50 == 0 else {}
    while True:
        try:
            async with places.session("light", number, {"steps": NUM_STEPS, **slow}) as session:
                await _play(session)
        except EnvironmentBusy:
            counts["busy"] += 1
        except EnvironmentFailed as exc:
            counts["lost" if "worker" in str(exc) else "failed"] += 1
        else:
            counts["played"] += 1
            return


async def _play(session: EnvironmentSession) -> None:
    for _ in range(NUM_STEPS):
        await asyncio.sleep(random.uniform(0, 0.1))  # the model thinks
        await session.interact(REPLY)


async def _kill_workers(service: Served, kills: int) -> int:
    for _ in range(kills):
        await asyncio.sleep(1)
        workers = list((await service.health())["workers"])
        if workers:
            os.kill(int(random.choice(workers)), signal.SIGKILL)
    return kills


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def run(options: argparse.Namespace) -> Parts:
    parts: dict[str, Sequence[Mapping[str, Any]]] = {}
    for part in options.parts:
        if part == "open":
            sizes = sorted({max(1, options.sessions // 100), options.sessions})
            parts[part] = [await open_sessions(options.workers, n, options.steps, options.callers) for n in sizes]
        elif part == "processes":
            parts[part] = [await process_each(options.processes)]
        else:
            parts[part] = [await trouble(options.episodes, options.capacity, options.kills)]
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description="Costs of environments' sessions, and what is left after trouble.")
    parser.add_argument(
        "--parts", nargs="+", choices=("open", "processes", "trouble"), default=["open", "processes", "trouble"]
    )
    parser.add_argument("--sessions", type=int, default=10_000, help="open: sessions at once")
    parser.add_argument("--steps", type=int, default=20_000, help="open: steps, over all sessions")
    parser.add_argument("--callers", type=int, default=64, help="open: requests at once")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="open: worker processes")
    parser.add_argument("--processes", type=int, default=200, help="processes: sessions, each with its own")
    parser.add_argument("--episodes", type=int, default=1000, help="trouble: episodes, all at once")
    parser.add_argument("--capacity", type=int, default=100, help="trouble: sessions that the service plays at once")
    parser.add_argument("--kills", type=int, default=8, help="trouble: workers killed, one a second")
    quick = {
        "sessions": 40,
        "steps": 80,
        "callers": 8,
        "workers": 2,
        "processes": 3,
        "episodes": 30,
        "capacity": 8,
        "kills": 1,
    }
    run_parts(parser, run, 150, **quick)


if __name__ == "__main__":
    main()
