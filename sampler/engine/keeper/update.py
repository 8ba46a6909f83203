"""Updates one engine to another policy version: pause ─▶ load ─▶ check its report ─▶ continue.

Promise: no token is sampled while weights, their label and the cache may disagree. If an update fails and leaves that unknown,
the engine stays paused and EngineUnavailable is raised; the next successful update continues it.

SGLang 0.5.23, measured: a 400 to an update may mean that the weights ARE live, under the old label and over the old cache
("Weights were updated, but the cache was not flushed"). It occurs while requests hold the cache, as after a pause `in_place`,
or right after a request has ended. After a pause `retract` or `abort` nothing holds it. A pause `abort` on top of a pause
`in_place` never returns, and holds the lock that `continue` needs.
"""

import asyncio
import logging
from pathlib import Path
from typing import Literal

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engine_pool import LIST_AGE_S
from sampler.core.errors import CacheNotFlushed, EngineRefused, EngineUnavailable
from shared.processes.waits import Wait, waiting

log = logging.getLogger(__name__)

# This long after a service is DRAINING, no sampler sends to it: each has read the status, and earlier requests have arrived.
SETTLE_S = 1.25 * LIST_AGE_S


async def drain(client: EngineClient, url: str, limit_s: float, poll_s: float) -> None:
    """Return when the engine has finished all its requests, or after `limit_s`. Its service must be DRAINING meanwhile."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    what, end = f"requests in flight at {url}", f"all have ended, for {limit_s:g} s at most (drain_s)"
    with waiting(Wait(what, "samplers learn that it drains", end)) as wait:
        await asyncio.sleep(min(SETTLE_S, limit_s))
        while loop.time() < deadline:
            load = await client.load(url)
            if load.running + load.waiting == 0:
                return
            wait.set(Wait(what, f"{load.running} running, {load.waiting} waiting", end))
            await asyncio.sleep(poll_s)
    log.warning("not drained limit_s=%g url=%s: retracting running requests", limit_s, url)


async def update(
    client: EngineClient, url: str, folder: Path, version: int, mode: Literal["retract", "abort"], *, torn: bool = False
) -> None:
    """Serve the checked weights in `folder` as `version`. `torn`: the current weights mix two versions.

    Raises EngineRefused if nothing changed and the engine keeps serving, EngineUnavailable if its state is unknown.
    """
    await client.pause(url, mode)
    try:
        await _load(client, url, folder, version)
    except EngineRefused as exc:
        if torn:
            raise EngineUnavailable(f"{url} holds weights of two versions; it stays paused: {exc}") from exc
        await client.resume(url)
        raise
    await client.resume(url)


async def require_version(client: EngineClient, url: str, version: int) -> None:
    """Raises EngineUnavailable if the engine reports another one."""
    reported = (await client.model_info(url)).weight_version
    if reported != str(version):
        raise EngineUnavailable(f"{url} reports version {reported!r} after an update to {version}")


async def _load(client: EngineClient, url: str, folder: Path, version: int) -> None:
    """Load new weights, their label and an empty cache into a paused engine."""
    try:
        await client.update_weights_from_disk(url, str(folder), version)
    except CacheNotFlushed as exc:
        log.warning("weights are live over a stale cache: retracting all requests, updating again cause=%s", exc)
        await _load_over_stale_cache(client, url, folder, version)
    await require_version(client, url, version)


async def _load_over_stale_cache(client: EngineClient, url: str, folder: Path, version: int) -> None:
    """Retract the requests that hold the cache, then load everything again. The tokens being sampled when the weights changed
    (one per running request) keep the new label: SGLang has already counted them.
    """
    try:
        await client.pause(url, "retract")
        await client.flush_cache(url)
        await client.update_weights_from_disk(url, str(folder), version)
    except EngineRefused as exc:
        raise EngineUnavailable(
            f"{url} holds weights {version} under an older label and a stale cache; it stays paused: {exc}"
        ) from exc
