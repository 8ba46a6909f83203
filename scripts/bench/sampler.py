"""One sampler process against an engine that answers at once: what a turn costs the client and the database.

    python -m scripts.bench.sampler [--parts load,turns] [--at-once 1,8,64,256] [--tokens 20,500] [--tools chat,mcp]
                                    [--turns 10,30,60] [--seconds 6] [--json FILE] [--quick]

Everything is real but the engine (`scripts.bench.stub_engine`, a process of its own): a `python -m sampler` process, an embedded
mongod, groups of 8; `mcp` episodes call a tool on the bundled MCP server in every turn, `chat` episodes have as many turns
without tools. Parts:

    load      turns/s, CPU per turn of the sampler and of mongod, commands and bytes to and from MongoDB, at steady load
    turns     10, 30 and 60 turns a record, played to the end: commands per turn and per record (slope and rest), data stored
              ("B/token": bytes of BSON as stored, before the server compresses them, of tasks, records, dispatches and
              record_data, less the texts of replies and of messages, each counted once; by sampled tokens.
              "B/token on disk": what these collections take on disk, the texts included, as the server compressed them)
"""

import argparse
import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from scripts.bench.counted_sampler import COLLECTIONS
from scripts.bench.replies import make_tokenizer
from scripts.bench.results import run_parts
from scripts.bench.sampler_under_test import (
    EXAMPLE,
    GROUP,
    Bench,
    Row,
    cpu_s,
    tool_server,
)
from shared.processes.interrupt import run_command
from shared.processes.mongod import Mongod, free_port
from shared.store import Store

# ------------------------------------------------------------------ parts


async def load(bench: Bench, at_once: int, seconds: float) -> Row:
    await bench.fill(max(64, at_once // GROUP) + int(400 * seconds) // GROUP)
    assert bench.mongod.process is not None
    mongod = psutil.Process(bench.mongod.process.pid)
    with bench.engine():
        await bench.register()
        with bench.sampler(at_once) as sampler:
            await bench.until(lambda: _at_least(bench, max(100, 3 * at_once)))
            played, status, cpu, db_cpu = (
                await bench.played(),
                await bench.server_status(),
                cpu_s(sampler),
                cpu_s(mongod),
            )
            began = time.monotonic()
            await asyncio.sleep(seconds)
            took_s = time.monotonic() - began
            turns = await bench.played() - played
            now = await bench.server_status()
            cpu, db_cpu = cpu_s(sampler) - cpu, cpu_s(mongod) - db_cpu
    return {
        "episodes": bench.kind,
        "tokens": bench.tokens,
        "at once": at_once,
        "turns/s": turns / took_s,
        "sampler ms/turn": cpu / turns * 1e3,
        "sampler cores": cpu / took_s,
        "mongod ms/turn": db_cpu / turns * 1e3,
        "commands/turn": (now[0] - status[0]) / turns,
        "KB to mongod/turn": (now[1] - status[1]) / turns / 1e3,
        "KB from mongod/turn": (now[2] - status[2]) / turns / 1e3,
    }


async def _at_least(bench: Bench, turns: int) -> bool:
    return await bench.played() >= turns


async def to_the_end(bench: Bench, groups: int, at_once: int) -> Row:
    """Play `groups` groups until they are settled, and say what they took."""
    await bench.fill(groups)
    with bench.engine():
        await bench.register()
        with bench.sampler(at_once) as sampler:
            began, peak = time.monotonic(), 0
            while await bench.store.database["tasks"].count_documents({"status": "settled"}) < groups:
                peak = max(peak, _peak_memory(sampler))
                await asyncio.sleep(0.5)
            took_s = time.monotonic() - began
    await bench.store.client.admin.command("fsync")
    sizes = {name: await bench.store.database.command("collStats", name) for name in COLLECTIONS}
    stored = {name: found["size"] for name, found in sizes.items()}
    text = await _text_bytes(bench.store)
    records = groups * GROUP
    tokens = bench.tokens * bench.turns * records
    return {
        "episodes": bench.kind,
        "tokens": bench.tokens,
        "turns": bench.turns,
        "records": records,
        "commands/record": bench.commands() / records,
        "KB/record": sum(stored.values()) / records / 1e3,
        "KB dispatches": stored["dispatched_sampling_tasks"] / records / 1e3,
        "KB record_data": stored["record_data"] / records / 1e3,
        "B/token": (sum(stored.values()) - text) / tokens,
        "B/token text": text / tokens,
        "B/token on disk": sum(found["storageSize"] for found in sizes.values()) / tokens,
        "peak MiB": peak / 2**20,
        "seconds": took_s,
    }


async def _text_bytes(store: Store) -> int:
    """Bytes of the texts that people read: every reply, and every message that is new with a request."""
    sizes = {"$map": {"input": "$messages", "in": {"$strLenBytes": {"$ifNull": ["$$this.content", ""]}}}}
    cursor = await store.database["dispatched_sampling_tasks"].aggregate(
        [
            {"$project": {"n": {"$add": [{"$strLenBytes": "$response.text"}, {"$sum": sizes}]}}},
            {"$group": {"_id": None, "n": {"$sum": "$n"}}},
        ]
    )
    (row,) = await cursor.to_list()
    return int(row["n"])


def _peak_memory(process: psutil.Process) -> int:
    line = next(
        line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    return int(line.split()[1]) * 1024


def per_turn_and_record(rows: list[Row]) -> Row:
    """Commands per record over its turns is a line: its slope, and where it begins."""
    slope, rest = np.polyfit([row["turns"] for row in rows], [row["commands/record"] for row in rows], 1)
    return {"commands/turn": float(slope), "commands/record": float(rest)}


# ------------------------------------------------------------------ the program


async def run(options: argparse.Namespace) -> dict[str, list[Row]]:
    numbers = {name: [int(n) for n in getattr(options, name).split(",")] for name in ("at_once", "tokens", "turns")}
    rows: dict[str, list[Row]] = {}
    async with AsyncExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench_sampler")))
        folder.mkdir(parents=True, exist_ok=True)
        mongod = stack.enter_context(Mongod(folder / "mongodb"))
        store = await stack.enter_async_context(Store.open(mongod.connection_string, "bench"))
        port = free_port()
        stack.enter_context(tool_server(port, folder))

        model = make_tokenizer(EXAMPLE, folder / "model")

        def bench(**fields: Any) -> Bench:
            return Bench(mongod, store, folder, model, f"http://127.0.0.1:{port}/mcp", **fields)

        parts = options.parts.split(",")
        if "load" in parts:
            cases = [(k, t, n) for k in options.tools.split(",") for t in numbers["tokens"] for n in numbers["at_once"]]
            rows["load"] = [await load(bench(kind=k, tokens=t), n, options.seconds) for k, t, n in cases]
        if "turns" in parts:
            for kind, n in product(options.tools.split(","), numbers["tokens"]):
                found = [await to_the_end(bench(kind=kind, tokens=n, turns=t), 2, 16) for t in numbers["turns"]]
                rows[f"turns {kind} {n}"] = found
                rows[f"commands {kind} {n}"] = [per_turn_and_record(found)]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="load,turns")
    parser.add_argument("--at-once", default="1,8,64,256", help="episodes at once, of `load`")
    parser.add_argument("--tokens", default="20,500", help="of a reply, of `load` and `turns`")
    parser.add_argument("--tools", default="chat,mcp", help="kinds of episodes, of `load` and `turns`")
    parser.add_argument("--turns", default="10,30,60", help="of a record, of `turns` (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of one row of `load` (default: %(default)s)")
    run_parts(parser, run, 200, at_once="8", tokens="20", tools="mcp", turns="2,4", seconds=0.3)


if __name__ == "__main__":
    run_command(main)
