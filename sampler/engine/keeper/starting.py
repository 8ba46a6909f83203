"""Waits for a starting engine until it answers or exits, and says what it has loaded.

`/health` is not used: SGLang's runs a generation, and responds 503 after 20 s while paused.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.client.reports import ServerInfo
from sampler.core.errors import EngineError, EngineUnavailable, KeyRefused
from sampler.engine.keeper.config import KeeperConfig
from shared.documents.run import FIRST_VERSION
from shared.processes.waits import Wait, waiting
from shared.store import Store
from shared.weights.assembly import Reached
from shared.weights.files import manifest_of

ASK_S = 0.1


async def first_answer(
    client: EngineClient, url: str, limit_s: float, is_over: Callable[[], bool]
) -> ServerInfo | None:
    """The engine's reports; None once `is_over`: its process has exited, or its keeper stops.

    Raises EngineUnavailable after `limit_s`, KeyRefused.
    """
    deadline = asyncio.get_running_loop().time() + limit_s
    wait = Wait("its engine", f"{url} does not answer yet", f"it does, for {limit_s:g} s (start_timeout_s)")
    with waiting(wait):
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


async def announce_first(store: Store, config: KeeperConfig) -> None:
    """Announce the initial weights, unless they are announced. Raises DataError if the run has others."""
    path = config.model_name_or_path
    files = await asyncio.to_thread(manifest_of, path)
    await store.versions.ensure_first(config.policy, str(path.resolve()), files)


async def has_loaded(client: EngineClient, url: str, model: Path, reached: Reached) -> bool:
    """Whether an engine that has just started on `model` needs no other weights: these are version 0, and it was started under
    that label (`--weight-version 0`). Loading them again takes as long as the start."""
    if reached.version.version != FIRST_VERSION or not _same(reached.folder, model):
        return False
    return (await client.model_info(url)).weight_version == str(FIRST_VERSION)


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()
