"""Waits for a starting engine until it answers or exits.

`/health` is not used: SGLang's runs a generation, and responds 503 after 20 s while paused.
"""

import asyncio
from collections.abc import Callable

from sampler.engine.client.engine_client import EngineClient
from sampler.engine.client.reports import ServerInfo
from sampler.errors import EngineError, EngineUnavailable, KeyRefused

ASK_S = 0.1


async def first_answer(
    client: EngineClient, url: str, limit_s: float, is_over: Callable[[], bool]
) -> ServerInfo | None:
    """The engine's reports; None once `is_over`: its process has exited, or its keeper stops.

    Raises EngineUnavailable after `limit_s`, KeyRefused.
    """
    deadline = asyncio.get_running_loop().time() + limit_s
    while True:
        try:
            await client.model_info(url)
            return await client.server_info(url)
        except KeyRefused:
            raise
        except EngineError as exc:
            if is_over():
                return None
            if asyncio.get_running_loop().time() > deadline:
                raise EngineUnavailable(f"{url} did not answer within {limit_s:g} s: {exc}") from exc
        await asyncio.sleep(ASK_S)
