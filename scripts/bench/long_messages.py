"""How long agents wait for a gateway while one of them sends it 30 MB, against how long they wait without, in one run.

    python -m scripts.bench.long_messages [--agents 8] [--megabytes 30] [--seconds 10] [--max-tokens 32768] [--kinds one,many]
                                          [--json FILE] [--quick]

    one     one message of so many bytes
    many    messages of two letters

Real: a mongod, `python -m sampler.gateway`, HTTP; the engine is `scripts.bench.stub_engine`. Each agent sends a short request
after the other; one client asks for /health. First they do so alone, then while the long request is sent again and again, from a
thread of its own, each for `--seconds`. Times from the first byte sent to the last one read. `peak MiB` is the gateway's largest
resident memory since the long requests began.
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np

from scripts.bench.agent_clients import CLAIM_S, QUESTION, RawConnection
from scripts.bench.replies import make_tokenizer
from scripts.bench.results import run_parts
from scripts.bench.sampler_under_test import EXAMPLE, GROUP, Bench, Row, child, wait_for_port
from shared.processes.interrupt import run_command
from shared.processes.mongod import Mongod, free_port
from shared.store import Store

PATH = "/v1/chat/completions"
PAUSE_S = 0.02
ANSWERED_S = 600.0
MOST_TURNS = 1_000_000
LINE = "the quick brown fox, 12345 jumps over\n"
Offer = Mapping[str, Any]


def body_of(kind: str, model: str, size: int) -> bytes:
    """Of at least `size` bytes."""
    if kind == "one":
        messages = [{"role": "user", "content": LINE * (size // len(LINE) + 1)}]
    else:
        pair = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "on"}]
        messages = [*(pair * (size // len(json.dumps(pair)) + 1)), pair[0]]
    return json.dumps({"model": model, "messages": messages}).encode()


def sent(url: str, key: str, body: bytes) -> int:
    """The status of the answer. A server may answer, and close, before it has read everything."""
    at = urlsplit(url)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=ANSWERED_S)
    with contextlib.closing(connection):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request(
                "POST", PATH, body, {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            )
        return connection.getresponse().status


async def repeated(work: Callable[[], Awaitable[object]], until: asyncio.Event) -> list[float]:
    """The seconds of each; the last one begins before `until` is set."""
    took = []
    while not until.is_set():
        began = time.monotonic()
        await work()
        took.append(time.monotonic() - began)
        await asyncio.sleep(PAUSE_S)
    return took


async def others(url: str, offers: list[Offer], until: asyncio.Event) -> tuple[list[float], list[float]]:
    """The seconds of all agents' requests, and of /health."""
    async with httpx.AsyncClient(base_url=url, timeout=ANSWERED_S) as client:
        connections = [RawConnection(url) for _ in offers]

        def asking(connection: RawConnection, offer: Offer) -> Callable[[], Awaitable[bytes]]:
            body = {"model": offer["model"], "messages": [QUESTION]}
            return lambda: connection.post(PATH, body, offer["api_key"])

        agents = [repeated(asking(*each), until) for each in zip(connections, offers, strict=True)]
        *took, health = await asyncio.gather(*agents, repeated(lambda: client.get("/health"), until))
        for connection in connections:
            connection.close()
    return [one for each in took for one in each], health


async def with_long(
    url: str, key: str, body: bytes, seconds: float, done: asyncio.Event
) -> tuple[set[int], list[float]]:
    statuses: set[int] = set()
    took: list[float] = []
    ends = time.monotonic() + seconds
    try:
        while not took or time.monotonic() < ends:
            began = time.monotonic()
            statuses.add(await asyncio.to_thread(sent, url, key, body))
            took.append(time.monotonic() - began)
    finally:
        done.set()
    return statuses, took


async def measured(process: subprocess.Popen[bytes], url: str, kind: str, options: argparse.Namespace) -> Row:
    offers = [
        json.loads(await RawConnection(url).post("/claim", {"wait_s": CLAIM_S})) for _ in range(options.agents + 1)
    ]
    long, *short = offers
    body = body_of(kind, long["model"], round(options.megabytes * 1e6))
    for _ in range(2):  # the first time warms up
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(options.seconds, over.set)
        alone, health_alone = await others(url, short, over)
    before = reset_peak(process.pid)
    over = asyncio.Event()
    (during, health), (statuses, took) = await asyncio.gather(
        others(url, short, over), with_long(url, long["api_key"], body, options.seconds, over)
    )
    p99, p99_alone = (float(np.percentile(each, 99)) for each in (during, alone))
    return {
        "message": kind,
        "MB": len(body) / 1e6,
        "sent": len(took),
        "status": ", ".join(map(str, sorted(statuses))),
        "answered s": max(took),
        "p99 alone ms": p99_alone * 1e3,
        "p99 ms": p99 * 1e3,
        "ratio": p99 / p99_alone,
        "max alone ms": max(alone) * 1e3,
        "max ms": max(during) * 1e3,
        "health max alone ms": max(health_alone) * 1e3,
        "health max ms": max(health) * 1e3,
        "MiB before": before / 2**20,
        "peak MiB": memory(process.pid, "VmHWM") / 2**20,
    }


def reset_peak(pid: int) -> int:
    """The memory held now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # VmHWM := VmRSS
    return memory(pid, "VmRSS")


def memory(pid: int, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None, f"no {name} in /proc/{pid}/status"
    return int(found[1]) * 1024


async def run(options: argparse.Namespace) -> dict[str, list[Row]]:
    async with AsyncExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench_long")))
        folder.mkdir(parents=True, exist_ok=True)
        mongod = stack.enter_context(Mongod(folder / "mongodb"))
        store = await stack.enter_async_context(Store.open(mongod.connection_string, "bench"))
        bench = Bench(mongod, store, folder, make_tokenizer(EXAMPLE, folder / "model"), "")
        return {"long messages": [await _row(bench, kind, options) for kind in options.kinds.split(",")]}


async def _row(bench: Bench, kind: str, options: argparse.Namespace) -> Row:
    await bench.fill(options.agents // GROUP + 1)
    with bench.engine():
        await bench.register()
        port = free_port()
        flags = bench.flags(options.agents + 1) | {"gateway_port": port, "max_turns": MOST_TURNS}
        flags |= {"max_tokens": options.max_tokens}
        with child("sampler.gateway", flags, bench.folder, {}) as process:
            wait_for_port(port)
            return await measured(process, f"http://127.0.0.1:{port}", kind, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=8, help="with short requests (default: %(default)s)")
    parser.add_argument("--megabytes", type=float, default=30.0, help="of the long request (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each part (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=32768, help="the gateway's setting (default: %(default)s)")
    parser.add_argument("--kinds", default="one,many", help="of long requests (default: %(default)s)")
    run_parts(parser, run, 200, agents=2, megabytes=1.0, seconds=0.5)


if __name__ == "__main__":
    run_command(main)
