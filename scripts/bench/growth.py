"""How an episode's cost grows with its length: nothing may grow faster than the episode.

    python -m scripts.bench.growth [--parts turns,tokens] [--turns 10,30,100,300] [--tokens 1000,4000,16000,64000,128000]
                                   [--long-turns 30] [--json FILE] [--quick]

One sampler process, an engine that answers at once (`scripts.bench.stub_engine`) and an embedded mongod; a group of 8 episodes
is played to its end, half of the tokens by the model, half by the user. Parts:

    turns     more turns of the same length: 427 tokens each, so that 300 have 128,000
    tokens    30 turns, longer and longer

A row has, per episode: the sampler's processor time, the commands and bytes of it to MongoDB, the documents read, the characters
that the template rendered and the tokenizer encoded, and the largest memory above the idle process's. The exponents are slopes
of each over the length, both as logarithms: over all rows, and over the two longest.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import psutil

from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from scripts.bench.processes import cpu_s
from scripts.bench.sampler_under_test import GROUP, PLAYED_S, Bench, opened_bench

TURN_TOKENS = 427
TURNS = 30
LEAST_TOKENS = 16  # of a reply: it holds the answer
MEASURED = ("CPU ms", "commands", "KB", "documents", "rendered K", "encoded K", "MB")


async def measure(options: Options) -> Tables:
    tables: dict[str, list[Row]] = {}
    async with opened_bench(options.folder) as bench:
        if "turns" in options.parts.split(","):
            rows = [await episodes(bench, int(turns), TURN_TOKENS) for turns in options.turns.split(",")]
            tables |= {"more turns": rows, "exponents of turns": exponents(rows, "turns")}
        if "tokens" in options.parts.split(","):
            lengths = [int(tokens) for tokens in options.tokens.split(",")]
            rows = [await episodes(bench, options.long_turns, tokens // options.long_turns) for tokens in lengths]
            tables |= {"longer turns": rows, "exponents of tokens": exponents(rows, "tokens")}
    return tables


async def episodes(bench: Bench, turns: int, turn_tokens: int) -> Row:
    """A group of episodes of so many turns, of so many tokens each."""
    bench.turns, bench.tokens = turns, max(LEAST_TOKENS, turn_tokens // 2)
    bench.words = max(0, turn_tokens - bench.tokens)
    await bench.fill(0)
    await bench.store.database.drop_collection("workers")
    with bench.engine():
        await bench.register()
        with bench.sampler(GROUP) as pid:
            await bench.until(lambda: _is_known(bench))
            before_s, idle_bytes = cpu_s(pid), psutil.Process(pid).memory_info().rss
            await bench.add(1)
            await bench.until(lambda: _is_settled(bench), PLAYED_S)
            cpu, most_bytes = cpu_s(pid) - before_s, _peak_bytes(pid)
    counts = bench.counts()
    return {
        "turns": turns,
        "tokens": turns * turn_tokens,
        "CPU ms": cpu / GROUP * 1e3,
        "commands": counts["commands"] / GROUP,
        "KB": counts["bytes"] / GROUP / 1e3,
        "documents": counts["documents"] / GROUP,
        "rendered K": counts["rendered"] / GROUP / 1e3,
        "encoded K": counts["encoded"] / GROUP / 1e3,
        "MB": max(0.0, most_bytes - idle_bytes) / GROUP / 1e6,
    }


async def _is_known(bench: Bench) -> bool:
    """The sampler has begun, and has nothing to do."""
    return await bench.store.database["workers"].count_documents({}) > 0


async def _is_settled(bench: Bench) -> bool:
    return await bench.store.database["tasks"].count_documents({"status": "settled"}) >= 1


def _peak_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def exponents(rows: Sequence[Row], length: str) -> list[Row]:
    """Of every measured quantity."""
    return [
        {"quantity": name, "all rows": _slope(rows, length, name), "the two longest": _slope(rows[-2:], length, name)}
        for name in MEASURED
    ]


def _slope(rows: Sequence[Row], length: str, name: str) -> float:
    """Nan where a row has nothing."""
    points: list[tuple[Any, Any]] = [(row[length], row[name]) for row in rows]
    if len(points) < 2 or min(value for _, value in points) <= 0:
        return math.nan
    lengths, values = np.log(np.array(points, dtype=float)).T
    return float(np.polyfit(lengths, values, 1)[0])


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--parts", default="turns,tokens")
    parser.add_argument("--turns", default="10,30,100,300", help="of an episode, of `turns` (default: %(default)s)")
    parser.add_argument("--tokens", default="1000,4000,16000,64000,128000", help="of an episode, of `tokens`")
    parser.add_argument(
        "--long-turns", type=int, default=TURNS, help="of an episode, of `tokens` (default: %(default)s)"
    )
    run_benchmark(parser, measure, parts="turns", turns="8,32")
