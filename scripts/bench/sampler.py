"""One sampler process against an engine that answers at once: what a turn costs the client and the database.

    python -m scripts.bench.sampler [--parts load,turns,blocked,compared] [--at-once 1,8,64,256] [--tokens 20,500]
                                    [--tools chat,mcp] [--turns 10,30,60] [--seconds 6] [--json FILE] [--quick]

Everything is real but the engine (`scripts.bench.stub_engine`, a process of its own): a `python -m sampler` process, an embedded
mongod, groups of 8; `mcp` episodes call a tool on the bundled MCP server in every turn, `chat` episodes have as many turns
without tools. Parts:

    load      turns/s, CPU per turn of the sampler and of mongod, commands and bytes to and from MongoDB, at steady load
    turns     10, 30 and 60 turns a record, played to the end: commands per turn and per record (slope and rest)
    blocked   messages of `--words` words: encodings on the event loop that take it for a millisecond or more
    compared  a chat turn, a turn with a tool call, and one of a bare loop by the openai SDK (`scripts/bench/openai_loop.py`, run
              by the Python that `--openai` names, which has that package), by turns: medians over `--rounds`
"""

import asyncio
import statistics
import time
from itertools import product
from pathlib import Path

import numpy as np

from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from scripts.bench.processes import ROOT, cpu_s, started
from scripts.bench.sampler_under_test import GROUP, PLAYED_S, Bench, opened_bench

OPENAI_LOOP = "openai_loop"


async def measure(options: Options) -> Tables:
    at_once, tokens, turns = (
        [int(number) for number in text.split(",")] for text in (options.at_once, options.tokens, options.turns)
    )
    kinds, parts = options.tools.split(","), options.parts.split(",")
    tables: dict[str, list[Row]] = {}
    async with opened_bench(options.folder) as bench:
        if "load" in parts:
            tables["load"] = []
            for kind, length, number in product(kinds, tokens, at_once):
                bench.kind, bench.tokens = kind, length
                tables["load"].append(await load(bench, number, options.seconds))
        if "turns" in parts:
            for kind, length in product(kinds, tokens):
                bench.kind, bench.tokens, rows = kind, length, []
                for number in turns:
                    bench.turns = number
                    rows.append(await to_the_end(bench, 2, 16))
                case = f"{kind} {length}"
                tables |= {f"turns {case}": rows, f"commands {case}": [per_turn_and_record(rows)]}
        if "blocked" in parts:
            bench.kind, bench.tokens = "chat", tokens[0]
            words = [int(number) for number in options.words.split(",")]
            tables["blocked"] = [await blocked(bench, at_once[0], number, options.seconds) for number in words]
            bench.words = 0
        if "compared" in parts:
            bench.turns, bench.tokens = turns[0], tokens[0]
            tables["compared"] = await compared(bench, at_once[0], options)
    return tables


async def load(bench: Bench, at_once: int, seconds: float) -> Row:
    await bench.fill(max(64, at_once // GROUP) + int(400 * seconds) // GROUP)
    assert bench.mongod.process is not None
    mongod = bench.mongod.process.pid
    with bench.engine():
        await bench.register()
        with bench.sampler(at_once) as sampler:
            await bench.until(lambda: _at_least(bench, max(100, 3 * at_once)))
            turns_before, status = await bench.played(), await bench.server_status()
            cpu_before, began = (cpu_s(sampler), cpu_s(mongod)), time.monotonic()
            await asyncio.sleep(seconds)
            took_s, turns = time.monotonic() - began, await bench.played() - turns_before
            if turns == 0:
                raise SystemExit(f"no turn was played in {took_s:.0f} s; give --seconds a larger number")
            commands, bytes_in, bytes_out = (
                (now - before) / turns for now, before in zip(await bench.server_status(), status, strict=True)
            )
            cpu, db_cpu = cpu_s(sampler) - cpu_before[0], cpu_s(mongod) - cpu_before[1]
    return {
        "episodes": bench.kind,
        "tokens": bench.tokens,
        "at once": at_once,
        "turns/s": turns / took_s,
        "sampler ms/turn": cpu / turns * 1e3,
        "sampler cores": cpu / took_s,
        "mongod ms/turn": db_cpu / turns * 1e3,
        "commands/turn": commands,
        "KB to mongod/turn": bytes_in / 1e3,
        "KB from mongod/turn": bytes_out / 1e3,
    }


async def blocked(bench: Bench, at_once: int, words: int, seconds: float) -> Row:
    """How long the event loop, and every other episode with it, stands still while a message of so many words is encoded."""
    bench.words = words
    row, counts = await load(bench, at_once, seconds), bench.counts()
    return {
        "words": words,
        "sampler ms/turn": row["sampler ms/turn"],
        "encoded on the loop": counts.get("encodings", 0),
        "1 ms or more": counts.get("long_encodings", 0),
        "longest ms": counts.get("longest_us", 0) / 1e3,
    }


async def compared(bench: Bench, at_once: int, options: Options) -> list[Row]:
    """Processor time of the client's process alone, all with the same number of conversations and of turns in each."""
    costs: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for kind in options.tools.split(","):
            bench.kind = kind
            costs.setdefault(f"tandem, {kind}", []).append(
                (await load(bench, at_once, options.seconds))["sampler ms/turn"]
            )
        bench.kind = "chat"
        for switch in ((), ("--logprobs",)) if options.openai else ():
            name = f"openai SDK, {'with log-probs' if switch else 'text alone'}"
            costs.setdefault(name, []).append(await _of_openai(bench, at_once, options, switch))
    medians = {name: statistics.median(rounds) for name, rounds in costs.items()}
    ours = next(iter(medians.values()))
    return [
        {"client": name, "ms/turn": median, "least": min(costs[name]), "above or below the first": median - ours}
        | {"first : this": ours / median}
        for name, median in medians.items()
    ]


async def _of_openai(bench: Bench, at_once: int, options: Options, switches: tuple[str, ...]) -> float:
    """Milliseconds a turn."""
    program = str(ROOT / "scripts" / "bench" / "openai_loop.py")
    with bench.engine():
        flags = ["--at-once", str(at_once), "--turns", str(bench.turns), *switches]
        command = [str(options.openai), program, bench.engine_url, *flags]
        with started(command, bench.folder / f"{OPENAI_LOOP}.log") as loop:
            bench.running[OPENAI_LOOP] = loop
            await bench.until(lambda: _has_completed(bench, max(100, 3 * at_once)))
            before, cpu_before = await bench.completed(), cpu_s(loop.pid)
            await asyncio.sleep(options.seconds)
            ms_per_turn = (cpu_s(loop.pid) - cpu_before) / (await bench.completed() - before) * 1e3
            del bench.running[OPENAI_LOOP]
    return ms_per_turn


async def _has_completed(bench: Bench, turns: int) -> bool:
    return await bench.completed() >= turns


async def _at_least(bench: Bench, turns: int) -> bool:
    return await bench.played() >= turns


async def to_the_end(bench: Bench, groups: int, at_once: int) -> Row:
    """Play `groups` groups until they are settled."""
    await bench.fill(groups)
    with bench.engine():
        await bench.register()
        with bench.sampler(at_once):
            await bench.until(lambda: _is_settled(bench, groups), PLAYED_S)
    records = groups * GROUP
    return {
        "episodes": bench.kind,
        "tokens": bench.tokens,
        "turns": bench.turns,
        "records": records,
        "commands/record": bench.counts()["commands"] / records,
    }


async def _is_settled(bench: Bench, groups: int) -> bool:
    return await bench.store.database["tasks"].count_documents({"status": "settled"}) >= groups


def per_turn_and_record(rows: list[Row]) -> Row:
    """Commands per record over its turns is a line: its slope, and where it begins."""
    slope, rest = np.polyfit([row["turns"] for row in rows], [row["commands/record"] for row in rows], 1)
    return {"commands/turn": float(slope), "commands/record": float(rest)}


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--parts", default="load,turns", help="load, turns, blocked, compared (default: %(default)s)")
    parser.add_argument("--at-once", default="1,8,64,256", help="episodes at once, of `load`")
    parser.add_argument("--tokens", default="20,500", help="of a reply")
    parser.add_argument("--tools", default="chat,mcp", help="kinds of episodes")
    parser.add_argument("--turns", default="10,30,60", help="of a record, of `turns` (default: %(default)s)")
    parser.add_argument("--words", default="50,200,1000,2500", help="of a message, of `blocked` (default: %(default)s)")
    parser.add_argument("--openai", type=Path, help="a Python with the openai package, for `compared`")
    parser.add_argument("--rounds", type=int, default=3, help="of `compared` (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of one row of `load` (default: %(default)s)")
    run_benchmark(parser, measure, width=200, at_once="8", tokens="20", tools="mcp", turns="2,4", seconds=0.3)
