"""CPU per tool call with many open sessions, and the share of the garbage collector: CPython's thresholds against the sampler's.

python -m scripts.bench.sessions --url http://127.0.0.1:PORT/mcp --tool calculator --arguments '{"expression": "1+1"}'
                                 [--sessions 1000] [--rounds 2]
"""

import argparse
import asyncio
import gc
import json
import time

import uvloop

from sampler.service.garbage import collect_seldom
from sampler.tools import ToolCatalog, ToolServer, ToolSession, Traffic
from scripts.bench.results import show
from shared.processes.interrupt import run_command

AT_ONCE = 16


async def bench(server: ToolServer, tool: str, arguments: dict[str, object], sessions: int, rounds: int) -> None:
    catalog, traffic = ToolCatalog(), Traffic(AT_ONCE, AT_ONCE, 60.0)
    opened = [ToolSession([server], catalog=catalog, traffic=traffic) for _ in range(sessions)]
    looks = [0, 0.0, 0.0]

    def watch(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            looks[2] = time.thread_time()
        else:
            looks[0] += 1
            looks[1] += time.thread_time() - looks[2]

    gc.callbacks.append(watch)
    rows = []
    for start in range(0, sessions, AT_ONCE):
        await asyncio.gather(*(session.open() for session in opened[start : start + AT_ONCE]))
    for label in ("CPython's", "the sampler's"):
        if label == "the sampler's":
            collect_seldom()
        looks[:] = [0, 0.0, 0.0]
        began = time.process_time()
        for start in [*range(0, sessions, AT_ONCE)] * rounds:
            await asyncio.gather(*(each.call(tool, arguments) for each in opened[start : start + AT_ONCE]))
        cpu = time.process_time() - began
        ms = cpu / (sessions * rounds) * 1e3
        rows.append({"thresholds": label, "ms/call": ms, "looks": looks[0], "% in collector": looks[1] / cpu * 100})
    gc.callbacks.remove(watch)
    show(rows, f"{sessions} open sessions", decimals=2)
    await asyncio.gather(*(session.close() for session in opened))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--arguments", type=json.loads, default={})
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        server = ToolServer(name="bench", url=args.url)
        runner.run(bench(server, args.tool, args.arguments, args.sessions, args.rounds))


if __name__ == "__main__":
    run_command(main)
