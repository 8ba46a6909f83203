"""Long requests in flight: observed while sampling, and held by a pause before any of them has ended."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count, takewhile
from typing import Any

import httpx

from sampler.core.engines.client.engine_client import EngineClient
from tests.contract.engines import Engine

PROMPTS = [[20 + (11 * i + j) % 300 for j in range(16 + i)] for i in range(8)]
LENGTH = 600  # tokens: about a second at either engine, alone on an idle machine
LONG: dict[str, Any] = {"max_new_tokens": LENGTH, "temperature": 1.0, "ignore_eos": True}
CATCH_S = 120.0  # on a busy machine they may end before they are paused, many times: an engine has processes of its own
TOO_FAST = f"too fast to be caught, for {CATCH_S:g} s"
Until = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]
Requests = Sequence["asyncio.Task[Any]"]


def tries() -> Iterator[int]:
    """0, 1, … for `CATCH_S` seconds."""
    end = time.monotonic() + CATCH_S
    yield from takewhile(lambda _: time.monotonic() < end, count())


async def take_off(engine: Engine, until: Until, requests: Requests) -> bool:
    """Wait until the engine, which has nothing else to do, has sampled tokens of each. False: one has ended meanwhile."""
    growth = (len(PROMPTS[-1]) + 6) * len(requests)  # beyond all their prompts
    begun = 0

    async with httpx.AsyncClient(base_url=engine.url, timeout=60) as http:

        async def load() -> tuple[int, int, int]:
            found = (await http.get("/v1/loads")).json()["loads"][0]
            return found["num_running_reqs"], found["num_waiting_reqs"], found["num_used_tokens"]

        async def all_run() -> bool:
            nonlocal begun
            running, waiting, begun = await load()
            return any_done(requests) or (running, waiting) == (len(requests), 0)

        async def are_sampled() -> bool:
            return any_done(requests) or (await load())[2] >= begun + growth

        await until(all_run)
        await until(are_sampled)
    return not any_done(requests)


async def held(
    engine: Engine, client: EngineClient, until: Until, start: Callable[[], Requests], mode: str = "in_place"
) -> Requests:
    """What `start` began, paused by "in_place" or "retract" in mid-flight. That none is over is the engine's word: an answer may
    be on its way here.
    """
    for _ in tries():
        requests = start()
        await take_off(engine, until, requests)
        await client.pause(engine.url, mode)
        load = await client.load(engine.url)
        if load.running + load.waiting == len(requests):
            return requests
        await client.resume(engine.url)
        await asyncio.wait_for(asyncio.gather(*requests), 120)
    raise AssertionError(TOO_FAST)


def any_done(requests: Requests) -> bool:
    return any(request.done() for request in requests)
