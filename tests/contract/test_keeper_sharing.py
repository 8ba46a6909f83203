"""A keeper whose engine shares a device with a trainer: it sleeps while the device is claimed, and wakes with the newest weights.

The engine is the local one, which releases its memory for real; the trainer's part is played by the lease's verbs. (What the
real SGLang answers to the same routes: test_memory_occupation.py. Whole processes, killed: tests/system/test_shared_device.py.)
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engine_pool import EnginePool, PoolLimits
from sampler.core.engines.pool.engines import seen
from sampler.engine.keeper.child import BOUND
from sampler.engine.keeper.keeper import Keeper, KeeperConfig
from shared.documents.leases import LeaseClaim
from shared.documents.run import InferenceService
from shared.documents.states import LeaseKind, ServiceStatus
from shared.errors import ConfigError
from shared.store import Store
from shared.store.pipelines import EPOCH
from shared.weights.assembly import Assembly
from shared.weights.files import manifest_of
from tests.contract.engines import Reference
from tests.contract.flights import LENGTH, LONG, PROMPTS

Until = Callable[..., Awaitable[None]]
LONG_S = 600.0


class Sharing:
    """The keeper of one engine on the device "h:0", and what a trainer does."""

    def __init__(self, store: Store, pool: EnginePool, models: tuple[Path, Path], until: Until) -> None:
        self.store, self.pool, self.models, self._until = store, pool, models, until

    async def service(self) -> InferenceService:
        (found,) = await self.store.services.live("main")
        return found

    async def serves(self, version: int) -> None:
        await self._until(lambda: self._is(ServiceStatus.UP, version), 100)

    async def sleeps(self) -> None:
        await self._until(lambda: self._is(ServiceStatus.ASLEEP, None))

    async def _is(self, status: ServiceStatus, version: int | None) -> bool:
        found = await self.store.services.live("main")
        return [(s.status, s.version if version is not None else None) for s in found] == [(status, version)]

    async def take(self) -> LeaseClaim:
        """As a trainer: claim the device and wait until every engine on it sleeps."""
        claim = await self.store.leases.claim(self.lease, f"trainer {os.urandom(4).hex()}", LONG_S)
        assert claim is not None
        await self._until(lambda: self.store.leases.take(claim))
        return claim

    @property
    def lease(self) -> str:
        return "gpu:h:0"

    async def announce(self, number: int) -> None:
        folder = self.models[number % 2]
        found = await self.store.versions.announce("main", number, str(folder), manifest_of(folder))
        assert found.version == number


@asynccontextmanager
async def sharing(
    store: Store,
    models: tuple[Path, Path],
    until: Until,
    folder: Path,
    transport: httpx.AsyncBaseTransport | None = None,
    **options: Any,
) -> AsyncIterator[Sharing]:
    """`transport`: the keeper's to its engine."""
    config = KeeperConfig(
        run=store.run,
        db_connection_string="(open already)",
        model_name_or_path=models[0],
        shared_device="h:0",
        poll_s=0.05,
        heartbeat_s=0.05,
        **options,
    )
    stop = asyncio.Event()
    async with EngineClient(transport=transport) as client, EngineClient() as samplers:

        async def refresh() -> list[Any]:
            return [seen(service) for service in await store.services.live("main")]

        pool = EnginePool(samplers, refresh, PoolLimits(refresh_s=0.05, wait_s=5))
        task = asyncio.create_task(Keeper(store, client, config, Assembly(folder / "cache", models[0])).run(stop))
        try:
            yield Sharing(store, pool, models, until)
        finally:
            stop.set()
            await asyncio.wait_for(task, 60)
            await pool.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    ["retract", pytest.param("abort", marks=pytest.mark.thorough), pytest.param("drain", marks=pytest.mark.thorough)],
)
async def test_replies_begun_before_a_sleep_end_after_it_token_exact_and_without_failures(
    store: Store, models: tuple[Path, Path], until: Until, tmp_path: Path, mode: str
) -> None:
    reference = Reference(models)
    async with sharing(store, models, until, tmp_path, weight_update_mode=mode) as shared:
        await shared.serves(0)
        requests = [
            asyncio.create_task(shared.pool.generate(prompt, LONG, rid=f"r{k}")) for k, prompt in enumerate(PROMPTS)
        ]
        await asyncio.sleep(0)
        claim = await shared.take()
        await shared.sleeps()
        late = asyncio.create_task(shared.pool.generate(PROMPTS[0], {**LONG, "max_new_tokens": 8}, rid="late"))
        await asyncio.sleep(6)  # beyond the pool's wait_s: waiting for a sleeping engine is no failure
        assert not late.done()
        await shared.announce(1)
        await shared.store.leases.release(claim)
        replies = await asyncio.wait_for(asyncio.gather(*requests, late), 120)
        for prompt, reply in zip([*PROMPTS, PROMPTS[0]], replies, strict=True):
            assert reply.failures <= (mode == "abort")  # aborted before its first token: the pool counts it
            reference.assert_truthful(prompt, reply.generation)
        assert all(len(reply.generation.output_ids) == LENGTH for reply in replies[:-1])
        assert replies[-1].generation.version_runs == [[1, 8]]
        await shared.serves(1)


@pytest.mark.slow
async def test_the_engine_wakes_when_the_lease_of_a_killed_trainer_is_over(
    store: Store, models: tuple[Path, Path], until: Until, tmp_path: Path
) -> None:
    async with sharing(store, models, until, tmp_path) as shared:
        await shared.serves(0)
        await shared.take()
        await shared.sleeps()
        await store.database["leases"].update_many({}, {"$set": {"free_at": EPOCH}})
        await shared.serves(0)
        reply = await shared.pool.generate(PROMPTS[0], {**LONG, "max_new_tokens": 8}, rid="after")
        assert reply.generation.version_runs == [[0, 8]]
        second = await shared.take()
        await shared.sleeps()
        await store.leases.release(second)
        await shared.serves(0)


@pytest.mark.slow
@pytest.mark.thorough
async def test_an_engine_killed_asleep_starts_again_when_the_device_is_free_and_one_killed_awake_keeps_none_waiting(
    store: Store, models: tuple[Path, Path], until: Until, tmp_path: Path
) -> None:
    others = engine_pids()
    async with sharing(store, models, until, tmp_path) as shared:
        await shared.serves(0)
        claim = await shared.take()
        await shared.sleeps()
        (engine,) = engine_pids() - others
        os.kill(engine, signal.SIGKILL)

        async def is_down() -> bool:
            return await store.services.live("main") == []

        await until(is_down)
        await asyncio.sleep(1)
        assert engine_pids() <= others, "none starts on a held device"
        await shared.announce(1)
        await store.leases.release(claim)
        await shared.serves(1)
        (engine,) = engine_pids() - others
        os.kill(engine, signal.SIGKILL)
        claim = await shared.take()
        await store.leases.release(claim)
        await shared.serves(1)


async def test_a_keeper_that_starts_on_a_held_device_waits_and_stops_when_it_is_told(
    store: Store, models: tuple[Path, Path], until: Until, tmp_path: Path
) -> None:
    await store.leases.ensure(LeaseKind.GPU, "h:0")
    claim = await store.leases.claim("gpu:h:0", "trainer", LONG_S)
    assert claim is not None
    assert await store.leases.take(claim)
    others = engine_pids()
    async with sharing(store, models, until, tmp_path) as shared:

        async def is_there() -> bool:
            return bool((await store.leases.get(shared.lease)).occupants)

        await until(is_there)
        assert engine_pids() <= others
    assert (await store.leases.get("gpu:h:0")).occupants == []


def engine_pids() -> set[int]:
    """Of the local engines that this process has started: its keeper's, and those of other tests in the same process."""
    return {p.pid for p in psutil.Process().children(recursive=True) if is_engine(p)}


def is_engine(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()
    except psutil.NoSuchProcess:
        return False
    return "sampler.engine.local" in words and BOUND not in words


def test_an_engine_that_runs_elsewhere_cannot_share(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot know whether it sleeps"):
        KeeperConfig.load(
            [
                *(
                    "--run",
                    "r",
                    "--model_name_or_path",
                    "assets/example/model",
                    "--db_connection_string",
                    "mongodb://h",
                ),
                *("--engine_url", "http://h:1", "--shared_device", "h:0"),
            ]
        )
