"""Choice of engine, failover, continuation of aborted replies. Engines are scripted at the transport."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engine_pool import LIST_AGE_S, EnginePool, PoolLimits, Service
from sampler.core.engines.pool.progress import EngineReply
from sampler.core.errors import EngineRefused, EngineUnavailable
from tests.sampler.engines import ABORT, LENGTH, STOP, Engines, Up, answer, recorded

QUICK = PoolLimits(
    refresh_s=0.05,
    wait_s=2.0,
    backoff_s=0.01,
    max_backoff_s=0.02,
    suspect_s=0.3,
    max_suspect_s=0.3,
    max_failures=4,
    abort_s=1.0,
)
LASTING = replace(QUICK, suspect_s=60, max_suspect_s=60)  # however long the machine holds us up, it is not asked again
A, B = "http://a:1", "http://b:1"


@asynccontextmanager
async def pool_of(
    engines: Engines, services: Sequence[Service], limits: PoolLimits = QUICK
) -> AsyncIterator[EnginePool]:
    async def refresh() -> Sequence[Service]:
        return services

    async with EngineClient(transport=httpx.MockTransport(engines)) as client:
        pool = EnginePool(client, refresh, limits)
        yield pool
        await pool.close()


def scripted(*responses: httpx.Response | Exception) -> Callable[[httpx.Request], Awaitable[httpx.Response]]:
    """Answers in turn; the last one for ever."""
    left = list(responses)

    async def behave(request: httpx.Request) -> httpx.Response:
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return found

    return behave


async def ask(pool: EnginePool, **options: object) -> EngineReply:
    return await pool.generate([1, 2, 3, 4], {"max_new_tokens": 8, "temperature": 1.0}, rid="d1", **options)  # type: ignore[arg-type]  # options


async def test_a_request_has_its_adapter_and_tokens_of_that_version() -> None:
    engines = Engines({"a": scripted(answer([1, 2, 9], STOP, version="0"))})
    async with pool_of(engines, [Up(A, version=7, adapter="run.main@7")]) as pool:
        reply = await ask(pool)
    assert reply.generation.version_runs == [[7, 3]]
    assert [body["lora_path"] for body in engines.bodies()] == ["run.main@7"]


async def test_tokens_of_an_adapter_over_another_base_are_refused() -> None:
    engines = Engines({"a": scripted(answer([1, 2, 9], STOP, version="3"))})
    async with pool_of(engines, [Up(A, version=7, adapter="run.main@7")]) as pool:
        with pytest.raises(EngineUnavailable, match="base was version 3"):
            await ask(pool)


async def test_a_replaced_adapter_causes_a_refresh_and_no_suspicion() -> None:
    """In the words of SGLang, and in those of an engine that never had it."""
    said = [
        "The following requested LoRA adapters are not loaded: run.main@6",
        "Got LoRA adapter that has never been loaded: run.main@6",
    ]
    gone = [httpx.Response(400, json={"error": {"message": text}}) for text in said]
    engines = Engines({"a": scripted(*gone, answer([1, 9], STOP, version="0"))})
    names = iter(["run.main@6", "run.main@6", "run.main@7", "run.main@7"])

    async def refresh() -> Sequence[Service]:
        name = next(names)
        return [Up(A, version=int(name[-1]), adapter=name)]

    async with EngineClient(transport=httpx.MockTransport(engines)) as client:
        pool = EnginePool(client, refresh, replace(LASTING, refresh_s=60))
        reply = await ask(pool)
        await pool.close()
    assert (reply.generation.version_runs, reply.failures) == ([[7, 2]], 2)


async def test_the_least_loaded_live_engine_is_chosen() -> None:
    engines = Engines({"b": scripted(answer([9], STOP))})
    services = [
        Up(A, running=5),
        Up(B, running=8, capacity=40),
        Up("http://c:1", status="DOWN"),
        Up("http://d:1", status="UPDATING"),
    ]
    async with pool_of(engines, services) as pool:
        reply = await ask(pool)
    assert reply.generation.url == B
    assert (reply.generation.output_ids, reply.generation.logprobs, reply.generation.version_runs) == (
        [9],
        [-0.09],
        [[3, 1]],
    )


async def test_concurrent_requests_spread_before_the_next_heartbeat() -> None:
    async def when_all_have_asked(request: httpx.Request) -> httpx.Response:
        async with asyncio.timeout(60):
            while len(engines.bodies()) < 20:  # noqa: ASYNC110 - a list has no event
                await asyncio.sleep(0.01)
        return answer([9], STOP)

    engines = Engines({"a": when_all_have_asked, "b": when_all_have_asked})
    async with pool_of(engines, [Up(A, capacity=36), Up(B, capacity=4)]) as pool:
        await asyncio.gather(*(ask(pool) for _ in range(20)))
    assert engines.hosts().count("b") in (1, 2, 3)


async def test_an_episode_stays_with_its_engine_unless_that_is_much_fuller_or_down() -> None:
    engines = Engines({"a": scripted(answer([9], STOP)), "b": scripted(answer([9], STOP))})
    services = [Up(A, running=2), Up(B, running=0)]
    async with pool_of(engines, services) as pool:
        assert (await ask(pool, affinity=A)).generation.url == A
        services[0].running = 9
        await asyncio.sleep(0.06)
        assert (await ask(pool, affinity=A)).generation.url == B
        services[0].running, services[0].status = 0, "DOWN"
        await asyncio.sleep(0.06)
        assert (await ask(pool, affinity=A)).generation.url == B


async def test_a_request_for_a_version_goes_only_to_engines_that_serve_it() -> None:
    engines = Engines({"a": scripted(answer([9], STOP)), "b": scripted(answer([9], STOP))})
    async with pool_of(engines, [Up(A, version=4), Up(B, running=9, version=3)], replace(QUICK, wait_s=0.1)) as pool:
        assert (await ask(pool, version=3, affinity=A)).generation.url == B
        with pytest.raises(EngineUnavailable, match=r"no engine is up that serves version 5 .*a:1 UP version 4"):
            await ask(pool, version=5)


async def test_a_failing_engine_is_suspect_for_a_while_and_another_answers() -> None:
    engines = Engines({"a": scripted(httpx.ConnectError("refused")), "b": scripted(answer([9], STOP))})
    async with pool_of(engines, [Up(A), Up(B, running=3)], LASTING) as pool:
        replies = [await ask(pool, affinity=A) for _ in range(3)]
        assert [reply.generation.url for reply in replies] == [B, B, B]
        assert engines.hosts().count("a") == 1
        assert [reply.failures for reply in replies] == [1, 0, 0]
        assert (pool.stats.requests, pool.stats.failures, pool.stats.retries) == (4, 1, 1)


async def test_a_suspect_engine_is_used_again_afterwards() -> None:
    engines = Engines(
        {"a": scripted(httpx.ConnectError("refused"), answer([9], STOP)), "b": scripted(answer([9], STOP))}
    )
    async with pool_of(engines, [Up(A), Up(B, running=3)]) as pool:
        await ask(pool, affinity=A)
        asked = engines.hosts().count("a")
        await asyncio.sleep(QUICK.suspect_s + 0.05)
        await ask(pool, affinity=A)
        assert engines.hosts().count("a") > asked


async def test_the_pool_waits_for_its_only_engine_to_return() -> None:
    engines = Engines({"a": scripted(httpx.ConnectError("refused"), recorded("pause_abort_health"), answer([9], STOP))})
    async with pool_of(engines, [Up(A)]) as pool:
        reply = await ask(pool)
    assert reply.failures == 2
    assert reply.generation.output_ids == [9]


async def test_failures_are_bounded_and_the_last_one_is_reported() -> None:
    engines = Engines({"a": scripted(httpx.ConnectError("refused"))})
    async with pool_of(engines, [Up(A)]) as pool:
        with pytest.raises(EngineUnavailable, match=r"gave up after 4 failures.*refused"):
            await ask(pool)


async def test_waiting_for_any_engine_is_bounded() -> None:
    async with pool_of(Engines(), [Up(A, status="DOWN")], PoolLimits(wait_s=0.3, refresh_s=0.05)) as pool:
        async with asyncio.timeout(60):
            with pytest.raises(EngineUnavailable, match=r"no engine is up after 0\.3 s; known: http://a:1 DOWN"):
                await ask(pool)


async def test_a_refused_request_is_not_sent_again() -> None:
    engines = Engines({"a": scripted(recorded("err_negative_max_new_tokens"))})
    async with pool_of(engines, [Up(A)]) as pool:
        with pytest.raises(EngineRefused):
            await ask(pool)
    assert len(engines.bodies()) == 1


async def test_an_aborted_reply_continues_from_its_exact_tokens() -> None:
    engines = Engines(
        {"a": scripted(answer([5, 6], ABORT, "3"), answer([7], ABORT, "3"), answer([8, 9], STOP, "4", prompt_tokens=7))}
    )
    async with pool_of(engines, [Up(A)]) as pool:
        reply = await ask(pool)
    generation = reply.generation
    assert generation.output_ids == [5, 6, 7, 8, 9]
    assert generation.logprobs == [-0.05, -0.06, -0.07, -0.08, -0.09]
    assert generation.version_runs == [[3, 3], [4, 2]]
    assert (generation.finish_reason, generation.matched, generation.prompt_tokens) == ("stop", 9, 4)
    assert [(cut.n_tokens, cut.cause) for cut in reply.continuations] == [(2, "Aborted"), (1, "Aborted")]
    assert reply.engines == [], "one engine, which `generation.url` names"
    bodies = engines.bodies()
    assert [body["input_ids"] for body in bodies] == [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7]]
    assert [body["sampling_params"]["max_new_tokens"] for body in bodies] == [8, 6, 5]
    assert all(body["sampling_params"]["temperature"] == 1.0 for body in bodies)


async def test_an_abort_at_the_very_end_of_the_budget_is_a_length_finish() -> None:
    engines = Engines({"a": scripted(answer(list(range(8)), ABORT))})
    async with pool_of(engines, [Up(A)]) as pool:
        reply = await ask(pool)
    assert reply.generation.finish_reason == "length"
    assert len(engines.bodies()) == 1


async def test_a_continuation_may_move_to_another_engine() -> None:
    engines = Engines(
        {"a": scripted(answer([5], ABORT), httpx.ConnectError("gone")), "b": scripted(answer([6], LENGTH, "5"))}
    )
    async with pool_of(engines, [Up(A), Up(B, running=9)], LASTING) as pool:
        reply = await ask(pool)
    assert engines.hosts() == ["a", "a", "b"]
    assert reply.generation.output_ids == [5, 6]
    assert reply.generation.version_runs == [[3, 1], [5, 1]]


async def test_aborts_without_a_token_are_bounded() -> None:
    engines = Engines({"a": scripted(answer([], ABORT))})
    async with pool_of(engines, [Up(A)]) as pool:
        with pytest.raises(EngineUnavailable, match="aborted 4 times without a token"):
            await ask(pool)


async def test_a_cancelled_episode_aborts_its_request_at_the_engine() -> None:
    async def never(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(60)
        return httpx.Response(200)

    engines = Engines({"a": never})
    async with pool_of(engines, [Up(A)]) as pool:
        asking = asyncio.create_task(ask(pool))
        while not engines.bodies():  # noqa: ASYNC110 - a list has no event
            await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert engines.bodies("/abort_request") == [{"rid": engines.bodies()[0]["rid"]}]


async def test_a_request_that_timed_out_is_aborted_before_its_retry() -> None:
    async def never(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(60)
        return httpx.Response(200)

    engines = Engines({"a": never, "b": scripted(answer([9], STOP))})
    async with pool_of(engines, [Up(A), Up(B, running=9)], LASTING) as pool:
        reply = await ask(pool, timeout_s=0.3)
    assert reply.generation.url == B
    assert engines.hosts("/abort_request") == ["a"]


async def test_no_request_id_begins_with_another() -> None:
    engines = Engines({"a": scripted(answer([5], ABORT), answer([5], ABORT), answer([9], STOP))})
    async with pool_of(engines, [Up(A)]) as pool:
        await asyncio.gather(*(ask(pool) for _ in range(5)))
    rids = [body["rid"] for body in engines.bodies()]
    assert len(set(rids)) == len(rids) >= 7
    assert len({len(rid) for rid in rids}) == 1


async def test_the_list_of_engines_is_read_once_for_many_waiting_requests() -> None:
    reads, read = 0, asyncio.Event()

    async def refresh() -> Sequence[Service]:
        nonlocal reads
        reads += 1
        async with asyncio.timeout(60):
            await read.wait()
        return [Up(A)]

    engines = Engines({"a": scripted(answer([9], STOP))})
    async with EngineClient(transport=httpx.MockTransport(engines)) as client:
        pool = EnginePool(client, refresh)
        waiting = [asyncio.create_task(ask(pool)) for _ in range(20)]
        await asyncio.sleep(0.01)  # all wait for the one who reads
        waiting[0].cancel()
        read.set()
        done = await asyncio.gather(*waiting, return_exceptions=True)
    assert reads == 1
    assert sum(isinstance(reply, EngineReply) for reply in done) == 19


async def test_a_draining_engine_gets_no_requests_and_is_waited_for_longer_than_a_down_one() -> None:
    listed = [Up(A, status="DRAINING")]
    async with pool_of(Engines({"a": scripted(answer([9], STOP))}), listed, replace(QUICK, wait_s=0.2)) as pool:
        asking = asyncio.create_task(ask(pool))
        await asyncio.sleep(1.0)  # were it DOWN, the reply would be given up by now
        assert pool.stats.requests == 0
        listed[0] = Up(A)
        assert (await asyncio.wait_for(asking, 60)).generation.url == A
        listed[0] = Up(A, status="DOWN")
        while await pool.is_up():  # noqa: ASYNC110 - until the list is read again
            await asyncio.sleep(0.01)
        with pytest.raises(EngineUnavailable, match=r"no engine is up after 0\.2 s"):
            await ask(pool)


async def test_a_list_of_engines_that_took_long_to_read_is_reread_before_use() -> None:
    reads: list[float] = []

    async def refresh() -> Sequence[Service]:
        reads.append(LIST_AGE_S if not reads else 0)
        services = [Up(B if reads[-1] else A)]  # as it was when the question arrived
        await asyncio.sleep(reads[-1])
        return services

    async with EngineClient(transport=httpx.MockTransport(Engines({"a": scripted(answer([9], STOP))}))) as client:
        assert (await ask(EnginePool(client, refresh))).generation.url == A
    assert len(reads) >= 2


async def test_the_pools_counters_match_its_requests() -> None:
    engines = Engines({"a": scripted(answer([5, 6], ABORT), answer([9], STOP))})
    async with pool_of(engines, [Up(A)]) as pool:
        await ask(pool)
    counted = pool.stats
    assert counted.engine_s > 0
    assert (counted.requests, counted.continuations, counted.prompt_tokens, counted.output_tokens) == (2, 1, 4, 3)
