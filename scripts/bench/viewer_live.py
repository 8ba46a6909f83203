"""What a run loses while its viewer is open: windows with the viewer open and closed take turns within one run.

    python -m scripts.bench.viewer_live [--looks dashboard,clicking] [--pairs 30] [--seconds 10] [--json FILE]
    python -m scripts.bench.viewer_live --quick

The run is real but for its engine and trainer: a sampler process, a tool server, mongod and `scripts.bench.stub_engine`; a step
with its metrics is written every five seconds, so that an open dashboard nearly always has something new to fetch. Before it
lie `--groups` trained groups, which pages show. The run's processes share one core and keep it busy; viewer and browser have
another one, as if they were on another machine. So `slower %` is what the viewer costs mongod and the run, and the
most that it can be: with spare cores the run does not feel it.

    dashboard   the page asks for what is new every five seconds, as `charts.js` does
    clicking    besides, someone opens another page every three seconds, of ids drawn from the whole run

Windows stand in the order open, closed, closed, open, so that a run that becomes slower by itself favours neither. Each pair
gives one ratio; `slower %` and `more CPU %` are the means of their logarithms, `from` and `to` the 95 % intervals (of t).
`CPU ms/turn` is processor time of the sampler and of mongod; what else the machine does makes both ratios noisy. `of mongod %` is
not: the processor time of mongod's threads that serve the viewer's connections, as a share of the run's core while it is open.
"""

import argparse
import asyncio
import math
import os
import random
import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import psutil

from scripts.bench import big_run
from scripts.bench.replies import make_tokenizer
from scripts.bench.results import Parts, run_parts
from scripts.bench.sampler_under_test import EXAMPLE, Bench, Row, child, cpu_s, new_task, tool_server
from scripts.bench.viewer import LONGEST_S, asked_paths, with_ids
from shared.documents.run import TrainedStep
from shared.documents.states import TaskStatus
from shared.names import LOOPBACK_HOSTS, TRAIN_SPLIT
from shared.processes.interrupt import run_command
from shared.processes.mongod import Mongod, free_port
from shared.store import Store
from shared.viewer.dashboard import POLL_LIVE_S

RUN = "live"
CLICK_S = 3.0
AT_ONCE = 64
INSERTED = 500  # tasks at a time
LOOKS = ("dashboard", "clicking")


@dataclass(frozen=True, slots=True)
class OpenOrClosed:
    turns: int
    seconds: float
    run_cpu_s: float
    viewer_cpu_s: float
    served_cpu_s: float  # by mongod, for the viewer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--looks", default=",".join(LOOKS), help="what an open viewer does (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=30, help="of windows, for each look (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a window (default: %(default)s)")
    parser.add_argument("--groups", type=int, default=10_000, help="that the run has trained before")
    run_parts(parser, run, 200, pairs=2, seconds=3.0, groups=160)


async def run(options: argparse.Namespace) -> Parts:
    run_core, viewer_core = _cores()
    async with AsyncExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="viewer-live-")))
        mongod = stack.enter_context(Mongod(folder / "mongodb"))
        store = await stack.enter_async_context(Store.open(mongod.connection_string, RUN, timeout_s=LONGEST_S))
        port = free_port()
        model = make_tokenizer(EXAMPLE, folder / "model")
        bench = Bench(mongod, store, folder, model, f"http://127.0.0.1:{port}/mcp", kind="mcp")
        await _fill(bench, options.groups)
        assert mongod.process is not None
        database = psutil.Process(mongod.process.pid)
        # Children have the core of their parent; threads that mongod has already are moved one by one.
        os.sched_setaffinity(0, run_core)
        for thread in database.threads():
            os.sched_setaffinity(thread.id, run_core)
        stack.enter_context(tool_server(port, folder))
        stack.enter_context(bench.engine())
        await bench.register()
        sampler = stack.enter_context(bench.sampler(AT_ONCE))
        os.sched_setaffinity(0, viewer_core)
        viewer_port = free_port()
        arguments = ("view", RUN, "--port", str(viewer_port), "--db_connection_string", mongod.connection_string)
        viewer = stack.enter_context(child("shared.cli", {}, folder, {}, arguments))
        async with httpx.AsyncClient(base_url=f"http://{LOOPBACK_HOSTS[0]}:{viewer_port}", timeout=LONGEST_S) as client:
            measured = LiveRun(bench, client, sampler, database, psutil.Process(viewer.pid), options.groups)
            await bench.until(measured.is_ready)
            training = asyncio.create_task(_train(store, options.groups), name="steps")
            stack.callback(training.cancel)
            return {"slow-down": [await measured.look(name, options) for name in options.looks.split(",")]}


def _cores() -> tuple[set[int], set[int]]:
    """Of the run's processes, and of viewer and browser: the same where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return {cores[0]}, {cores[-1]}


async def _fill(bench: Bench, groups: int) -> None:
    """What was trained, and tasks without end behind it."""
    store = bench.store
    await store.client.drop_database(store.run)
    await big_run.make(store, groups)
    for name in ("inference_services", "workers"):  # what the generator invents does not answer
        await store.database[name].drop()
    await store.ensure_indexes()
    await _more_tasks(bench, groups)


async def _more_tasks(bench: Bench, first: int) -> None:
    await bench.store.tasks.insert_new([new_task(seq) for seq in range(first, first + INSERTED)])


async def _train(store: Store, groups: int) -> None:
    """Steps of the trainer that is not there."""
    step = groups // big_run.GROUPS_PER_STEP
    while True:
        step += 1
        trained = TrainedStep(id=f"main:{step}:1", policy="main", step=step, trainer_generation=1, groups=[("t", 8)])
        await store.steps.add(trained)
        await store.steps.note_metrics(trained.id, {**big_run.METRICS, "reward/mean": random.random()})
        await asyncio.sleep(POLL_LIVE_S)


@dataclass(slots=True)
class LiveRun:
    """One run with its viewer, and what the browser knows."""

    bench: Bench
    client: httpx.AsyncClient
    sampler: psutil.Process
    mongod: psutil.Process
    viewer: psutil.Process
    groups: int
    tag: str = ""
    asked: int = 0

    async def is_ready(self) -> bool:
        try:
            await self.client.get("/runs.json")
        except httpx.TransportError:
            return False
        return await self.bench.played() >= 3 * AT_ONCE

    async def look(self, name: str, options: argparse.Namespace) -> Row:
        if name not in LOOKS:
            raise SystemExit(f"--looks: {name!r}; expected {' or '.join(LOOKS)}")
        draw = random.Random(0)
        await self._ask(f"/runs/{RUN}")
        self.asked = 0
        pairs: list[tuple[OpenOrClosed, OpenOrClosed]] = []
        for pair in range(options.pairs):
            windows = {}
            for is_open in (True, False) if pair % 2 == 0 else (False, True):
                asking = self._person(name, draw) if is_open else _no_one()
                windows[is_open] = await self._window(options.seconds, asking)
                await self._keep_fed()
            pairs.append((windows[True], windows[False]))
        slower = interval([math.log(_rate(closed) / _rate(opened)) for opened, closed in pairs])
        more = interval([math.log(_cpu_ms(opened) / _cpu_ms(closed)) for opened, closed in pairs])
        opened, closed = (_sum([pair[n] for pair in pairs]) for n in (0, 1))
        return {
            "viewer": name,
            "pairs": len(pairs),
            "turns/s closed": _rate(closed),
            "turns/s open": _rate(opened),
            **{f"slower %{end}": value for end, value in zip(("", " from", " to"), slower, strict=True)},
            "CPU ms/turn closed": _cpu_ms(closed),
            **{f"more CPU %{end}": value for end, value in zip(("", " from", " to"), more, strict=True)},
            "of mongod %": opened.served_cpu_s / opened.seconds * 100,
            "viewer's own core %": opened.viewer_cpu_s / opened.seconds * 100,
            "requests": self.asked,
        }

    async def _window(self, seconds: float, asking: Any) -> OpenOrClosed:
        before, began = await self._now(), time.monotonic()
        task = asyncio.create_task(asking, name="browser")
        done, _ = await asyncio.wait({task}, timeout=seconds)
        for ended in done:
            ended.result()  # raises what went wrong with a page
        await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        after = await self._now()
        turns, run_cpu, viewer_cpu, served = (b - a for a, b in zip(before, after, strict=True))
        return OpenOrClosed(int(turns), time.monotonic() - began, run_cpu, viewer_cpu, served)

    async def _now(self) -> tuple[float, float, float, float]:
        served = await self._served_s()
        return await self.bench.played(), cpu_s(self.sampler) + cpu_s(self.mongod), cpu_s(self.viewer), served

    async def _served_s(self) -> float:
        """Processor time of mongod's threads for the viewer so far: it has one for each connection, with its name."""
        ports = {one.laddr.port for one in self.viewer.net_connections()}
        stages: list[dict[str, Any]] = [
            {"$currentOp": {"idleConnections": True}},
            {"$match": {"client": {"$exists": True}}},
        ]
        open_now = await (await self.bench.store.client.admin.aggregate(stages)).to_list()
        names = {one["desc"] for one in open_now if int(one["client"].rpartition(":")[2]) in ports}
        return threads_s(self.mongod.pid, names)

    async def _person(self, look: str, draw: random.Random) -> None:
        """Never ends by itself. Polls in the middle between two windows' borders, so that none is cut off often."""
        clicks = [path.replace("/runs/big", f"/runs/{RUN}") for path in asked_paths(RUN) if "/curves" not in path]
        begun = asyncio.get_running_loop().time()
        polls = ((begun + (n + 0.5) * POLL_LIVE_S, "") for n in range(10**6))
        opened = ((begun + (n + 0.3) * CLICK_S, draw.choice(clicks)) for n in range(10**6))
        poll, click = next(polls), next(opened)
        while True:
            at, path = min(poll, click) if look == "clicking" else poll
            await asyncio.sleep(at - asyncio.get_running_loop().time())
            if path:
                await self._ask(with_ids(path, self.groups, draw))
                click = next(opened)
            else:
                await self._poll()
                poll = next(polls)

    async def _poll(self) -> None:
        answer = await self._ask(f"/runs/{RUN}/curves.json?policy=main", {"if-none-match": self.tag})
        self.tag = answer.headers["etag"]

    async def _ask(self, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        self.asked += 1
        answer = await self.client.get(path, headers=headers)
        if answer.status_code not in (200, 304):
            raise SystemExit(f"{re.sub('[?].*', '', path)}: status {answer.status_code}: {answer.text[:300]}")
        return answer

    async def _keep_fed(self) -> None:
        """Between two windows: the run never ends."""
        tasks = self.bench.store.database["tasks"]
        if await tasks.count_documents({"status": TaskStatus.CREATED}, limit=INSERTED // 2) < INSERTED // 2:
            newest = await tasks.find_one({"split": TRAIN_SPLIT}, {"seq": 1}, sort=[("seq", -1)])
            assert newest is not None
            await _more_tasks(self.bench, newest["seq"] + 1)


def threads_s(process: int, names: set[str]) -> float:
    """Processor time of the process's threads of these names."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    mine = [task for task in tasks if (task / "comm").read_text().strip() in names]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in mine) / 1e9


async def _no_one() -> None:
    await asyncio.Event().wait()


def interval(logarithms: Sequence[float]) -> tuple[float, float, float]:
    """The mean ratio less 1 in percent, and its 95 % interval."""
    mean = statistics.fmean(logarithms)
    error = statistics.stdev(logarithms) / math.sqrt(len(logarithms))
    half = _t_975(len(logarithms) - 1) * error
    low, middle, high = (100 * math.expm1(at) for at in (mean - half, mean, mean + half))
    return middle, low, high


def _t_975(freedom: int) -> float:
    """Quantile of Student's t: the normal one, corrected (Abramowitz and Stegun 26.7.5); from 9 degrees on within 0.2 %."""
    z = statistics.NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _sum(windows: Sequence[OpenOrClosed]) -> OpenOrClosed:
    whole = OpenOrClosed(0, 0.0, 0.0, 0.0, 0.0)
    for one in windows:
        whole = replace(
            whole,
            turns=whole.turns + one.turns,
            seconds=whole.seconds + one.seconds,
            run_cpu_s=whole.run_cpu_s + one.run_cpu_s,
            viewer_cpu_s=whole.viewer_cpu_s + one.viewer_cpu_s,
            served_cpu_s=whole.served_cpu_s + one.served_cpu_s,
        )
    return whole


def _rate(window: OpenOrClosed) -> float:
    return window.turns / window.seconds


def _cpu_ms(window: OpenOrClosed) -> float:
    return window.run_cpu_s / window.turns * 1e3


if __name__ == "__main__":
    run_command(main)
