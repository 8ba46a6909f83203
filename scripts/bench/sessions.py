"""CPU per tool call with many open sessions, and the share of the garbage collector: CPython's thresholds against the sampler's.

    python -m scripts.bench.sessions [--sessions 1000] [--rounds 2] [--json FILE] [--quick]
    python -m scripts.bench.sessions --url http://127.0.0.1:PORT/mcp --tool search --arguments '{"query": "tea"}'

Without --url: the calculator of the bundled tool server, started here.
"""

import argparse
import asyncio
import gc
import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import uvloop

from sampler.service.garbage import collect_seldom
from sampler.tools import ToolCatalog, ToolServer, ToolSession, Traffic
from scripts.bench.results import add_json, parsed, show, write_json
from scripts.bench.sampler_under_test import Row, tool_server
from shared.processes.interrupt import run_command
from shared.processes.mongod import free_port

AT_ONCE = 16


async def bench(server: ToolServer, tool: str, arguments: dict[str, object], sessions: int, rounds: int) -> list[Row]:
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
    rows: list[Row] = []
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
    await asyncio.gather(*(session.close() for session in opened))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of an MCP server (default: the bundled one, started here)")
    parser.add_argument("--tool", default="calculator", help="default: %(default)s")
    parser.add_argument("--arguments", type=json.loads, default={"expression": "1+1"}, help="default: %(default)s")
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    add_json(parser)
    args = parsed(parser, sessions=32, rounds=1)
    with ExitStack() as stack:
        if args.url is None:
            port, folder = free_port(), Path(stack.enter_context(tempfile.TemporaryDirectory()))
            stack.enter_context(tool_server(port, folder))
            args.url = f"http://127.0.0.1:{port}/mcp"
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        server = ToolServer(name="bench", url=args.url)
        rows = runner.run(bench(server, args.tool, args.arguments, args.sessions, args.rounds))
    show(rows, f"{args.sessions} open sessions", decimals=2)
    write_json(args.json, rows)


if __name__ == "__main__":
    run_command(main)
