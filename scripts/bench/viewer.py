"""The viewer on a large run: the time of every page and of its twin as JSON, what its queries examine, and what it costs.

    python -m scripts.bench.viewer --groups 100000     # 1,000,000 dispatches, 400,000 episodes; two minutes to make, 0.2 GB
    python -m scripts.bench.viewer --quick

Pages are asked through the application in this process, each for other ids, one after the other. `documents` and `keys` are what
the database examined for one page (its profiler), `returned` what it sent. `server_ms` and `viewer_ms` are processor time of one
answer, of mongod and of this process: a dashboard that is open asks every five seconds; its share is that of answers
with something new.
"""

import argparse
import random
import re
import statistics
import tempfile
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
from pymongo import AsyncMongoClient

from scripts.bench.big_run import EPISODE_S, GROUPS_PER_STEP, RECORDS, ROUNDS, make
from scripts.bench.results import Parts, run_parts
from shared.processes.mongod import Mongod
from shared.store import Store
from shared.store.pipelines import EPOCH
from shared.viewer.app import RUN_PAGES, make_app
from shared.viewer.dashboard import POLL_LIVE_S

RUN = "big"
LONGEST_S = 60.0
# What pages are asked that show nothing without it, or the end of the run alone.
ASKED = {
    "/rollouts/{record_id:path}/tokens": "?by=difference",
    "/timeline": "?end={time}&seconds=30",
    "/ledger": "?before={seq}",
    "/tasks": "?before={seq}",
    "/compare": "?a={record_id}&b={another}",
    "/versions": "?a={round}&b={later}",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=100_000, help="each has 4 episodes and 10 dispatches")
    parser.add_argument("--requests", type=int, default=40, help="of each page")
    run_parts(parser, measure, 150, groups=200, requests=3)


async def measure(options: argparse.Namespace) -> Parts:
    with tempfile.TemporaryDirectory(prefix="viewer-bench-") as temporary:
        folder = options.keep or Path(temporary)
        with Mongod(folder / "mongodb") as server:
            async with AsyncMongoClient[dict[str, Any]](
                server.connection_string
            ) as patient:  # a large run takes minutes
                made = await _filled(Store(patient, RUN), options.groups)
            async with Store.open(server.connection_string, RUN, timeout_s=LONGEST_S) as store:
                return {"run": [made], **await _measured(store, server, options.groups, options.requests)}


async def _measured(store: Store, server: Mongod, groups: int, requests: int) -> Parts:
    assert server.process is not None
    mongod = psutil.Process(server.process.pid)
    transport = httpx.ASGITransport(app=make_app(store.client), raise_app_exceptions=False)
    draw = random.Random(0)
    rows: list[Mapping[str, Any]] = []
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=LONGEST_S) as client:
        for path in asked_paths(RUN):
            for twin in ("", ".json") if path != "/" else ("",):
                rows.append(await _page(store, client, mongod, _twin(path, twin), groups, requests, draw))
    dashboard = next(row for row in rows if row["page"] == "/runs/RUN/curves.json")
    open_ms = float(dashboard["viewer_ms"]) + float(dashboard["server_ms"])
    memory = {"viewer_mib": psutil.Process().memory_info().rss / 2**20, "mongod_mib": mongod.memory_info().rss / 2**20}
    share = {"dashboard_open_core_percent": open_ms / (1000 * POLL_LIVE_S) * 100}
    return {"pages": rows, "costs": [{**memory, **share}]}


def asked_paths(run: str) -> list[str]:
    """Every page, with names of ids in braces."""
    return [
        "/",
        *(
            f"/runs/{run}{page.path}{ASKED.get(page.path, '')}"
            for page in RUN_PAGES
            if page.template or page.path == "/curves"
        ),
    ]


async def _filled(store: Store, groups: int) -> Mapping[str, Any]:
    """The generator writes whole collections, without indexes; those are built then, as a run has them."""
    if await store.database["tasks"].estimated_document_count() == 0:
        await store.client.drop_database(store.run)
        began = time.perf_counter()
        turns = await make(store, groups)
        made_s = time.perf_counter() - began
        await store.ensure_indexes()
        indexes_s = time.perf_counter() - began - made_s
    else:
        turns, made_s, indexes_s = groups * RECORDS * 5 // 2, 0.0, 0.0
    size = (await store.database.command("dbStats"))["storageSize"] / 2**20
    return {"groups": groups, "dispatches": turns, "made_s": made_s, "indexes_s": indexes_s, "storage_mib": size}


async def _page(
    store: Store,
    client: httpx.AsyncClient,
    mongod: psutil.Process,
    path: str,
    groups: int,
    requests: int,
    draw: random.Random,
) -> Mapping[str, Any]:
    await _asked(client, with_ids(path, groups, draw))  # templates and plans are read once
    spent = [_cpu_s(mongod), time.process_time()]
    times, size, statuses = [], 0, set()
    for _ in range(requests):
        began = time.perf_counter()
        size, status = await _asked(client, with_ids(path, groups, draw))
        statuses.add(status)
        times.append((time.perf_counter() - began) * 1000)
    spent = [_cpu_s(mongod) - spent[0], time.process_time() - spent[1]]
    await store.database.command("profile", 2)
    await _asked(client, with_ids(path, groups, draw))
    await store.database.command("profile", 0)
    asked = await store.database["system.profile"].find({"ns": {"$ne": f"{store.run}.system.profile"}}).to_list()
    await store.database["system.profile"].drop()
    return {
        "page": re.sub(r"\{(\w+)(:\w+)?\}", r"{\1}", path).replace(RUN, "RUN"),
        "status": " ".join(map(str, sorted(statuses))),
        "median_ms": statistics.median(times),
        "p95_ms": sorted(times)[min(len(times) - 1, int(0.95 * len(times)))],
        "kib": size / 1024,
        "queries": len(asked),
        "keys": sum(one.get("keysExamined", 0) for one in asked),
        "documents": sum(one.get("docsExamined", 0) for one in asked),
        "returned": sum(one.get("nreturned", 0) for one in asked),
        "server_ms": spent[0] / requests * 1000,
        "viewer_ms": spent[1] / requests * 1000,
    }


def _twin(path: str, twin: str) -> str:
    before, mark, after = path.partition("?")
    return before + twin + mark + after


def with_ids(path: str, groups: int, draw: random.Random) -> str:
    """`path` with ids in the place of their names."""
    group = draw.randrange(groups)
    rounds = [n * max(1, groups // GROUPS_PER_STEP // ROUNDS) for n in range(ROUNDS)]
    at = EPOCH + timedelta(seconds=group * RECORDS + EPISODE_S)
    task = f"main:train:0:t{group}"
    ids = {
        "gid": task,
        "task": task,
        "record_id": f"{task}:{draw.randrange(RECORDS)}:1",
        "policy": "main",
        "step": str(min(group, groups - groups % GROUPS_PER_STEP - 1) // GROUPS_PER_STEP + 1),
        "another": f"{task}:{draw.randrange(RECORDS)}:1",
        "seq": str(group + 1),
        "time": at.isoformat(),
        "round": str(draw.choice(rounds)),
        "later": str(draw.choice(rounds)),
    }
    return re.sub(r"\{(\w+)(:\w+)?\}", lambda part: ids[part[1]], path)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _asked(client: httpx.AsyncClient, path: str) -> tuple[int, int]:
    """Bytes, and the status."""
    answer = await client.get(path)
    return len(answer.content), answer.status_code


if __name__ == "__main__":
    main()
