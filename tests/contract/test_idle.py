"""An engine without requests leaves the processor to others: on a machine without GPUs to the trainer."""

import asyncio
import time
from urllib.parse import urlsplit

import psutil

from sampler.core.engines.client.engine_client import EngineClient
from tests.contract.engines import Engine

REQUESTS = 4
PAUSE_S = 0.8


async def test_between_requests_no_process_of_an_engine_uses_the_processor(
    engine: Engine, client: EngineClient
) -> None:
    """vLLM's own core and worker would look for the next message all the time here: twice what lasts. SGLang's scheduler, which
    looks now and then, uses 0.13 of it."""
    processes = processes_of(engine)
    used, lasted = 0.0, 0.0
    for number in range(REQUESTS):
        await client.generate(engine.url, [20, 21, 22], {"max_new_tokens": 1}, f"idle-{number}")
        before, start = seconds(processes), time.monotonic()
        await asyncio.sleep(PAUSE_S)  # what is measured is this time
        used += seconds(processes) - before
        lasted += time.monotonic() - start
    assert used < lasted / 4, f"{used:.2f} s of processor time in {lasted:.2f} s without a request"


def processes_of(engine: Engine) -> list[psutil.Process]:
    port = urlsplit(engine.url).port
    listening = [one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    server = psutil.Process(next(one.pid for one in listening if one.laddr.port == port))
    return [server, *server.children(recursive=True)]


def seconds(processes: list[psutil.Process]) -> float:
    return sum(sum(one.cpu_times()[:2]) for one in processes)
