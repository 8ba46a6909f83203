"""Requests in flight under abort, disconnection, pause and continue, and new weights. Every token has its weight version."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from sampler.core.engines.client.engine_client import EngineClient, Generation
from sampler.core.engines.pool.engine_pool import EnginePool
from sampler.core.engines.pool.progress import EngineReply
from sampler.core.errors import CacheNotFlushed, EngineRefused
from sampler.engine.keeper.update import update
from tests.contract.engines import Engine
from tests.contract.flights import LENGTH, LONG, PROMPTS, TOO_FAST, Requests, Until, any_done, held, take_off, tries

PATIENCE_S = 60.0  # limit on a busy machine for operations that are immediate on an idle one


class Flight:
    """Long requests, one per prompt, over the pool."""

    def __init__(self, engine: Engine, client: EngineClient, pool: EnginePool, until: Until) -> None:
        self.engine, self.client, self._pool, self._until = engine, client, pool, until
        self.requests: Sequence[asyncio.Task[EngineReply]] = []

    def start(self, count: int) -> Requests:
        self.requests = [
            asyncio.create_task(self._pool.generate(prompt, LONG, rid=f"flight-{i}"))
            for i, prompt in enumerate(PROMPTS[:count])
        ]
        return self.requests

    async def take_off(self, count: int) -> None:
        """They run, and no end of any has been observed."""
        for _ in tries():
            if await take_off(self.engine, self._until, self.start(count)):
                return
            await self.come_down()
        pytest.fail(TOO_FAST)

    async def pause(self, mode: str, count: int) -> None:
        """They run, and the engine is paused before one of them has ended; if by "abort", each of them was cut."""
        if mode != "abort":
            await held(self.engine, self.client, self._until, lambda: self.start(count), mode)
            return
        for _ in tries():
            await self.take_off(count)
            before = self._pool.stats.continuations

            async def cut_or_over(before: int = before) -> bool:
                over = sum(request.done() for request in self.requests)
                return self._pool.stats.continuations - before + over >= count

            await self.client.pause(self.engine.url, mode)
            await self._until(cut_or_over)
            if not any_done(self.requests):
                return
            await self.client.resume(self.engine.url)
            await self.come_down()
        pytest.fail(TOO_FAST)

    async def land(self) -> list[EngineReply]:
        """All replies; checks their full length and that each token is exact under its recorded version."""
        replies = await self.come_down()
        for prompt, reply in zip(PROMPTS, replies, strict=False):
            self.engine.reference.assert_truthful(prompt, reply.generation)
        return replies

    async def come_down(self) -> list[EngineReply]:
        """All replies, each of full length."""
        replies = list(await asyncio.wait_for(asyncio.gather(*self.requests), 120))
        for reply in replies:
            assert (reply.generation.finish_reason, len(reply.generation.output_ids)) == ("length", LENGTH)
        return replies


@pytest.fixture
def flight(engine: Engine, client: EngineClient, pool: EnginePool, until: Until) -> Flight:
    return Flight(engine, client, pool, until)


async def is_running(engine: Engine, client: EngineClient, count: int) -> bool:
    """`count` requests run, and none waits."""
    load = await client.load(engine.url)
    return (load.running, load.waiting) == (count, 0)


async def held_alone(
    engine: Engine, client: EngineClient, until: Until, rid: str, mode: str
) -> "asyncio.Task[Generation]":
    """One long request, without the pool, in a paused engine."""

    def start() -> Requests:
        return [asyncio.create_task(client.generate(engine.url, PROMPTS[0], LONG, rid=rid))]

    (asked,) = await held(engine, client, until, start, mode)
    return asked


async def load_next(engine: Engine, client: EngineClient) -> int:
    """The other weights, under the next label."""
    label = engine.label + 1
    await client.update_weights_from_disk(engine.url, str(engine.weights(label)), label)
    return label


# ---------------------------------------------------------------- abort


async def test_an_aborted_request_returns_its_partial_output(
    engine: Engine, client: EngineClient, until: Until
) -> None:
    asked = await held_alone(engine, client, until, "aborted-0", "in_place")
    await client.abort(engine.url, "aborted")  # not a request's id, only a prefix of one
    await client.resume(engine.url)
    assert (await asyncio.wait_for(asked, PATIENCE_S)).finish_reason == "length"
    asked = await held_alone(engine, client, until, "aborted-1", "in_place")
    await client.abort(engine.url, "aborted-1")
    await client.resume(engine.url)  # SGLang aborts running requests when it continues
    found = await asyncio.wait_for(asked, PATIENCE_S)
    assert found.finish_reason == "abort"
    assert 0 < len(found.output_ids) < LENGTH
    assert found.abort_message
    engine.reference.assert_truthful(PROMPTS[0], found)


async def test_a_request_aborted_while_waiting_is_answered_too(
    engine: Engine, client: EngineClient, until: Until
) -> None:
    """SGLang returns only the part that it had streamed (every 50 tokens), and omits the prompt's length."""
    asked = await held_alone(engine, client, until, "waiting", "retract")
    await client.abort(engine.url, "waiting")
    found = await asyncio.wait_for(asked, PATIENCE_S)
    assert (found.finish_reason, found.prompt_tokens) == ("abort", len(PROMPTS[0]))
    engine.reference.assert_truthful(PROMPTS[0], found)
    await client.resume(engine.url)


async def test_a_cancelled_episode_leaves_nothing_running(
    flight: Flight, pool: EnginePool, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    await flight.take_off(3)
    aborted: list[str] = []
    abort = EngineClient.abort

    async def noted(client: EngineClient, url: str, rid: str) -> None:
        aborted.append(rid)
        await abort(client, url, rid)

    monkeypatch.setattr(EngineClient, "abort", noted)
    for request in flight.requests:
        request.cancel()
    await asyncio.gather(*flight.requests, return_exceptions=True)
    await pool.close()
    assert len(aborted) == 3  # SGLang notices a disconnection only after 4 s
    await until(lambda: is_running(flight.engine, flight.client, 0))


# ---------------------------------------------------------------- pause and continue


@pytest.mark.parametrize("mode", ["retract", "abort", "in_place"])
async def test_a_pause_without_an_update_changes_no_reply(flight: Flight, mode: str) -> None:
    engine, client = flight.engine, flight.client
    await flight.pause(mode, 3)
    await client.resume(engine.url)
    replies = await flight.land()
    assert all(reply.generation.version_runs == [[engine.label, LENGTH]] for reply in replies)
    cuts = [reply.continuations for reply in replies]
    assert all(cuts) if mode == "abort" else not any(cuts)


@pytest.mark.parametrize("mode", ["retract", "abort"])
async def test_a_paused_engine_holds_requests_and_still_serves_the_information_routes(
    engine: Engine, client: EngineClient, mode: str
) -> None:
    """`/health` is not used: SGLang responds 503 there after 20 s, the local engine at once."""
    await client.pause(engine.url, mode)
    asked = asyncio.create_task(client.generate(engine.url, PROMPTS[0], {"max_new_tokens": 4}, rid="held"))
    async with asyncio.timeout(15):  # SGLang's own /health would take 20
        assert (await client.model_info(engine.url)).weight_version == str(engine.label)
        await client.server_info(engine.url)
        await client.load(engine.url)
    await asyncio.sleep(0.3)
    assert not asked.done()
    await client.resume(engine.url)
    engine.reference.assert_truthful(PROMPTS[0], await asyncio.wait_for(asked, PATIENCE_S))


async def test_pausing_and_continuing_may_be_repeated(engine: Engine, client: EngineClient) -> None:
    await client.resume(engine.url)
    for mode in ("retract", "retract", "abort"):
        await client.pause(engine.url, mode)
    for _ in range(2):
        await client.resume(engine.url)
    found = await client.generate(engine.url, PROMPTS[0], {"max_new_tokens": 4}, rid="after")
    assert found.output_ids


# ---------------------------------------------------------------- new weights


async def test_retracted_requests_continue_under_the_new_weights_with_a_fresh_cache(flight: Flight) -> None:
    engine, client = flight.engine, flight.client
    await flight.pause("retract", len(PROMPTS))
    label = await load_next(engine, client)
    await client.resume(engine.url)
    for reply in await flight.land():
        (old, before), (new, after) = reply.generation.version_runs
        assert (old, new, before + after) == (engine.label, label, LENGTH)
        assert not reply.continuations


async def test_aborted_requests_are_continued_by_the_pool_under_the_new_weights(flight: Flight) -> None:
    engine, client = flight.engine, flight.client
    await flight.pause("abort", len(PROMPTS))
    label = await load_next(engine, client)
    await client.resume(engine.url)
    for reply in await flight.land():
        (cut, *_) = (one for one in reply.continuations if one.n_tokens)
        assert reply.generation.version_runs == [[engine.label, cut.n_tokens], [label, LENGTH - cut.n_tokens]]


async def test_an_update_without_a_pause_waits_for_all_running_requests(flight: Flight) -> None:
    engine, client = flight.engine, flight.client
    await flight.take_off(2)
    try:
        await load_next(engine, client)
    except CacheNotFlushed:  # SGLang, if the last request has just ended: the reason why keepers pause first
        assert engine.kind == "sglang"
    for reply in await flight.land():
        assert reply.generation.version_runs == [[engine.label, LENGTH]]


async def test_an_update_clears_every_cached_prefix(engine: Engine, client: EngineClient) -> None:
    prompt = PROMPTS[7]
    await client.generate(engine.url, prompt, {"max_new_tokens": 8}, rid="fills-the-cache")
    await client.pause(engine.url, "retract")
    label = await load_next(engine, client)
    await client.resume(engine.url)
    found = await client.generate(engine.url, prompt, {"max_new_tokens": 16, "ignore_eos": True}, rid="after")
    assert (found.cached_tokens, found.version_runs) == (0, [[label, 16]])
    engine.reference.assert_truthful(prompt, found)


async def test_an_update_over_a_held_cache_is_a_400_after_which_the_engines_differ(flight: Flight) -> None:
    """SGLang: the new weights are live, under the old label and over the old cache; and the token that was being sampled
    meanwhile will be counted to the new version. The local engine: nothing was changed. `update` makes good both.
    """
    engine, client = flight.engine, flight.client
    await flight.pause("in_place", 3)
    with pytest.raises(CacheNotFlushed if engine.kind == "sglang" else EngineRefused):
        await load_next(engine, client)
    assert (await client.model_info(engine.url)).weight_version == str(engine.label)
    label = engine.label + 1
    await update(client, engine.url, engine.weights(label), label, "retract")
    for prompt, reply in zip(PROMPTS, await flight.come_down(), strict=False):
        (old, before), (new, after) = reply.generation.version_runs
        assert (old, new, before + after) == (engine.label, label, LENGTH)
        untrue = engine.reference.untrue(prompt, reply.generation)
        assert untrue in ([], [before] if engine.kind == "sglang" else [])


async def test_an_update_of_an_engine_paused_in_place_labels_every_token_correctly(flight: Flight) -> None:
    engine, client = flight.engine, flight.client
    await flight.pause("in_place", 3)
    await update(client, engine.url, engine.weights(engine.label + 1), engine.label + 1, "retract")
    for reply in await flight.land():
        assert [version for version, _ in reply.generation.version_runs] == [engine.label, engine.label + 1]


async def test_the_cache_is_not_flushed_while_requests_run(flight: Flight) -> None:
    engine, client = flight.engine, flight.client
    await flight.pause("in_place", 1)
    with pytest.raises(EngineRefused, match="Flush cache failed"):
        await client.flush_cache(engine.url)
    await client.resume(engine.url)
    await flight.land()
    await client.flush_cache(engine.url)


async def test_a_label_is_a_string_and_leaving_it_out_keeps_the_old_one(engine: Engine, client: EngineClient) -> None:
    body: dict[str, Any] = {"model_path": str(engine.models[0])}
    async with httpx.AsyncClient(base_url=engine.url, timeout=60) as http:
        number = await http.post("/update_weights_from_disk", json={**body, "weight_version": 5})
        assert (number.status_code, number.json()["object"]) == (400, "error")
        without = await http.post("/update_weights_from_disk", json=body)
        assert without.json() == {
            "success": True,
            "message": "Succeeded to update model weights.",
            "num_paused_requests": 0,
        }
    assert (await client.model_info(engine.url)).weight_version == str(engine.label)
