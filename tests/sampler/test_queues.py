"""Time-outs begin when the work begins: waiting in front of a bounded resource makes no work fail.

Guide: docs/inside/whose_act.md#queues.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from sampler.bundled_scorers.math_checker import MathChecker
from sampler.core.errors import ScorerFailed, UnusableTask
from sampler.core.scorers import calling, registry
from sampler.core.time_limits import queued, time_limit
from sampler.core.tools import Traffic
from sampler.scorers import ScoringRequest, mathematics, register_scorer, score_answer
from shared.mcp.servers import ToolServer
from shared.processes.waits import Wait

PLACE = Wait("a place", "all are taken", "one is free")
HARD = [r"2^{2^{2^{2^{2^{2}}}}}", "9**9**9**9", r"\int_0^1 x^{10^{10}} dx"]


def request(answer: str | None, *accepted: str) -> ScoringRequest:
    return ScoringRequest(answer=answer, accepted=accepted)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.setattr(registry, "_SCORERS", dict(registry._SCORERS))

    def register(scorer: Any, **options: Any) -> str:
        register_scorer("queued", **options)(scorer)
        return "queued"

    return register


async def test_waiting_counts_for_no_limit_around_it_and_work_does() -> None:
    async with time_limit(0.5), time_limit(0.5):
        async with queued(PLACE):
            await asyncio.sleep(1)
        await asyncio.sleep(0)

    async def waits_and_works() -> None:
        async with time_limit(0.2):
            async with queued(PLACE):
                await asyncio.sleep(0.5)
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await waits_and_works()


async def test_a_wait_in_a_task_of_the_work_stops_the_works_limit() -> None:
    async def waits(seconds: float) -> None:
        async with queued(PLACE):
            await asyncio.sleep(seconds)

    async with time_limit(0.5), asyncio.TaskGroup() as group:
        group.create_task(waits(1))
        group.create_task(waits(1.5))


async def test_a_limit_inside_of_a_wait_goes_on() -> None:
    with pytest.raises(TimeoutError):
        async with queued(PLACE), time_limit(0.1):
            await asyncio.sleep(60)


async def test_a_wait_that_outlives_its_limit_changes_nothing() -> None:
    let_go = asyncio.Event()

    async def waits() -> None:
        async with queued(PLACE):
            await let_go.wait()

    async with time_limit(60):
        waiting = asyncio.create_task(waits())
        await asyncio.sleep(0)
    let_go.set()
    await waiting


async def test_hard_answers_are_wrong_and_the_right_ones_behind_them_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker takes longer with the hard ones than a scorer's time-out; that is not the time of those that wait."""
    checker = MathChecker(cpu_s=2.0, workers=1)
    monkeypatch.setattr(mathematics, "_CHECKER", checker)
    hard = [score_answer("math", request(answer, "x+y"), timeout_s=5.0) for answer in [*HARD, *HARD]]
    right = [score_answer("math", request("y+x", "x+y"), timeout_s=5.0) for _ in range(4)]
    found = await asyncio.gather(*hard, *right)
    await checker.close()
    assert [one.value for one in found] == [0.0] * len(hard) + [1.0] * len(right)
    assert any("not decided" in one.details["reason"] for one in found[: len(hard)])


async def test_several_answers_are_checked_at_once() -> None:
    checker = MathChecker(workers=3)
    answers = await asyncio.gather(*(checker.equal(f"x+{i}", ["x+3"]) for i in range(9)))
    assert [equal for equal, _ in answers] == [i == 3 for i in range(9)]
    assert sum(worker._process is not None for worker in checker._workers) == 3
    await checker.close()


@pytest.mark.parametrize(("gold", "why"), [("", "holds no expression"), ("{" * 9000 + "x" + "}" * 9000, "not decided")])
async def test_a_reference_answer_that_cannot_be_read_is_the_tasks_fault(
    monkeypatch: pytest.MonkeyPatch, gold: str, why: str
) -> None:
    checker = MathChecker(cpu_s=1.0, workers=1)
    monkeypatch.setattr(mathematics, "_CHECKER", checker)
    with pytest.raises(UnusableTask, match=f"the task's answer .* cannot be compared with: .*{why}"):
        await score_answer("math", request("x", gold))
    await checker.close()


async def test_a_worker_that_was_ended_from_outside_is_replaced_unseen() -> None:
    checker = MathChecker(workers=1)
    assert (await checker.equal("x+x", ["2x"]))[0]
    process = checker._workers[0]._process
    assert process is not None
    process.kill()
    assert (await checker.equal("x+x", ["2x"]))[0]
    await checker.close()


async def test_an_answer_that_ends_the_worker_each_time_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    checker = MathChecker(workers=1)
    monkeypatch.setattr("sampler.bundled_scorers.math_checker._ARGUMENTS", ("-c", ENDS_ITSELF))
    equal, why = await checker.equal("x", ["x"])
    assert not equal
    assert "it ended the checker 2 times (status -11)" in why
    await checker.close()


ENDS_ITSELF = """
import os, sys
for line in sys.stdin:
    print('{"read": true}', flush=True)
    os.kill(os.getpid(), 11)
"""


async def test_a_threads_place_is_waited_for_outside_of_the_scorers_time(named: Callable[..., str]) -> None:
    def slow(request: ScoringRequest) -> float:
        time.sleep(0.2)
        return 1.0

    name = named(slow, needs_answer=False)
    calls = calling.MOST_THREADS * 8
    found = await asyncio.gather(*(score_answer(name, request(None), timeout_s=1.5) for _ in range(calls)))
    assert [one.value for one in found] == [1.0] * calls


async def test_a_place_that_never_comes_is_a_failure(
    named: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hangs(request: ScoringRequest) -> float:
        asyncio.run_coroutine_threadsafe(let_go.wait(), loop).result()
        return 1.0

    name = named(hangs, needs_answer=False)
    monkeypatch.setattr(calling, "MOST_WAIT_S", 0.5)
    calls = [score_answer(name, request(None), timeout_s=0.1) for _ in range(calling.MOST_THREADS + 1)]
    found = await asyncio.gather(*calls, return_exceptions=True)
    let_go.set()
    assert all(isinstance(one, ScorerFailed) for one in found)
    assert "no thread for the scorer within 0.5 s" in str(found[-1])


async def test_a_batch_is_waited_for_outside_of_the_episodes_time(named: Callable[..., str]) -> None:
    async def slow(requests: list[ScoringRequest]) -> list[float]:
        await asyncio.sleep(0.4)
        return [1.0] * len(requests)

    name = named(slow, needs_answer=False, batch_size=1)

    async def episode() -> float:
        async with time_limit(2.0):
            return (await score_answer(name, request(None))).value

    assert await asyncio.gather(*(episode() for _ in range(8))) == [1.0] * 8


async def test_a_tool_servers_place_is_waited_for_outside_of_the_episodes_time() -> None:
    """Places for opening, for sessions and for calls, of a server with few connections."""
    traffic = Traffic().of(ToolServer("s", url="http://127.0.0.1:1/sse", remote="sse", max_connections=8))

    async def attempt() -> int:
        await asyncio.sleep(0.3)
        return 1

    async def episode() -> int:
        async with time_limit(1.5):
            async with traffic.session():
                opened = await traffic.open(attempt)
                async with traffic.calling():
                    await asyncio.sleep(0.1)
            return opened

    assert await asyncio.gather(*(episode() for _ in range(12))) == [1] * 12
