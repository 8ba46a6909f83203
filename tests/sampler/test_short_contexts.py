"""What an engine refuses for good is not tried again: a context shorter than the settings' limits cuts replies, the rest fails
its slot at once."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engines import Engines
from sampler.core.episode.episode import play
from sampler.core.episode.sampler import AsyncSampler
from sampler.core.errors import ContextTooLong
from sampler.engine.keeper.config import KeeperConfig
from sampler.engine.keeper.keeper import Keeper
from sampler.settings import SamplerConfig
from scripts.bench.sampler_chat import Chat
from shared.documents.states import DispatchStatus, RecordStatus, SlotStatus, Termination
from shared.store import Store
from shared.weights.assembly import Assembly
from tests.sampler.engine.local.harness import Server, run_engine
from tests.sampler.episodes import MODEL, ended, resources
from tests.sampler.running import until
from tests.shared.builders import claim, import_tasks

CONTEXT = 160
LIMITS = {"max_tokens": 900, "max_prompt_tokens": 900, "max_new_tokens": 900, "default_scorer": "exact_match"}


@pytest.fixture(scope="module")
def engine() -> Iterator[Server]:
    with run_engine(MODEL, "--context-length", str(CONTEXT), "--weight-version", "3") as server:
        yield server


async def test_an_engine_that_serves_already_says_its_context_before_the_first_request(
    store: Store, engine: Server, tmp_path: Path
) -> None:
    """One that was given by URL: its keeper has not started it."""
    options = {"run": store.run, "db_connection_string": "x", "model_name_or_path": MODEL}
    keeper_config = KeeperConfig.model_validate(options | {"engine_url": engine.url, "heartbeat_s": 0.1})
    config = SamplerConfig.model_validate(options | LIMITS)
    stop = asyncio.Event()
    async with EngineClient() as client:
        keeper = Keeper(store, client, keeper_config, Assembly(tmp_path))
        keeping = asyncio.create_task(keeper.run(stop))
        (service,) = await until(store.services.all, bool)
        assert service.context == CONTEXT
        engines = Engines(store, client, config)
        await engines.refresh()
        (alarm,) = engines.alarms()
        assert f"has {CONTEXT} tokens, and max_tokens is 900: episodes end at {CONTEXT - 2} (length_limit)" in alarm
        await engines.close()
        stop.set()
        await keeping


class Talks(AsyncSampler):
    """Asks until there is no room for a reply."""

    async def run(self) -> Termination:
        question = [{"role": "user", "content": "Say something. " + "word " * 40}]
        while (turn := await self.create_chat_completions(question)) is not None:
            assert turn.usage["completion"] >= 1
        return Termination.LENGTH_LIMIT


async def test_an_episode_ends_where_the_engines_context_does(store: Store, engine: Server) -> None:
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, engine.url, **LIMITS) as shared:
        sampler = Talks(shared, await claim(store))
        assert await play(sampler) is not None
        record, slot, dispatches = await ended(store, sampler)
        assert (record.status, record.termination) == (RecordStatus.SCORED, Termination.LENGTH_LIMIT)
        assert (slot.status, slot.failures) == (SlotStatus.SCORED, 0)
        assert shared.pool.stats.failures == 0
        assert shared.pool.contexts.known == {engine.url: CONTEXT}
        (alarm,) = shared.pool.contexts.alarms(900)
        assert f"has {CONTEXT} tokens, and max_tokens is 900: episodes end at {CONTEXT - 2} (length_limit)" in alarm
        before = shared.pool.stats.requests
        assert before <= len(dispatches) + 1, "one refusal for each engine"


async def test_a_first_prompt_beyond_the_context_is_asked_for_once(store: Store, engine: Server) -> None:
    await import_tasks(store, 2, num_generations=1)

    class Long(AsyncSampler):
        async def run(self) -> Termination:
            turn = await self.create_chat_completions([{"role": "user", "content": "word " * 90}])
            return self.ended_by(turn) or Termination.ANSWERED

    async with resources(store, engine.url, **LIMITS) as shared:
        for number in range(2):
            sampler = Long(shared, await claim(store))
            assert await play(sampler) is not None
            record, slot, dispatches = await ended(store, sampler)
            assert (record.termination, slot.failures) == (Termination.LENGTH_LIMIT, 0)
            assert [d.status for d in dispatches] == [DispatchStatus.FAILED] * (number == 0)
        assert shared.pool.stats.requests == 1


@pytest.mark.parametrize(
    "message",
    [
        "input_ids[3] is 1238; the vocabulary of this model has ids 0 to 400.",
        "top_k must be -1 (disable), or at least 1, got 0.",
        "The input (1500 tokens) is longer than the model's context length.",
    ],
)
async def test_a_refusal_that_stays_fails_the_slot_at_once(store: Store, message: str) -> None:
    async def refuses(request: httpx.Request) -> httpx.Response:
        return httpx.Response(400, json={"error": {"message": message}})

    await import_tasks(store, 1, num_generations=1)
    async with resources(store, refuses, max_failures=8) as shared:
        sampler = Chat(shared, await claim(store))
        await play(sampler)
        record, slot, _ = await ended(store, sampler)
        if "longer than" in message:  # an engine that names no number
            assert record.termination == Termination.LENGTH_LIMIT
            return
        assert (record.status, record.termination) == (RecordStatus.FAILED, Termination.MISCONFIGURED)
        assert (slot.status, slot.failures) == (SlotStatus.FAILED, 1)
        assert message in (record.error or "")
        assert (shared.pool.stats.requests, shared.pool.stats.retries) == (1, 0)


async def test_a_wrong_key_may_be_corrected_meanwhile(store: Store) -> None:
    async def demands_a_key(request: httpx.Request) -> httpx.Response:
        return httpx.Response(401, json={"error": "Unauthorized"})

    await import_tasks(store, 1, num_generations=1)
    async with resources(store, demands_a_key) as shared:
        sampler = Chat(shared, await claim(store))
        await play(sampler)
        record, slot, _ = await ended(store, sampler)
        assert (record.termination, slot.status) == (Termination.ENGINE_FAILURE, SlotStatus.OPEN)


async def test_a_refusal_says_how_long_the_context_is(store: Store, engine: Server) -> None:
    async with resources(store, engine.url) as shared:
        prompt = [5] * (CONTEXT + 10)
        with pytest.raises(ContextTooLong) as raised:
            await shared.pool.generate(prompt, {"max_new_tokens": 4}, rid="long")
        assert raised.value.context == CONTEXT
