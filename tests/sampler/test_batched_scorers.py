"""Scorers that take a list of requests at once."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sampler.core.errors import ScorerFailed
from sampler.core.scorers import registry
from sampler.scorers import Score, ScoringRequest, register_scorer, score_answer
from shared.errors import ConfigError, OwnCodeFailed


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Registers a scorer for the test alone."""
    monkeypatch.setattr(registry, "_SCORERS", dict(registry._SCORERS))

    def register(scorer: Any, size: int = 4, **options: Any) -> str:
        register_scorer("batched", batch_size=size, **options)(scorer)
        return "batched"

    return register


def asked(text: str) -> ScoringRequest:
    return ScoringRequest(answer=text, accepted=("1",), reply=text)


async def scores(name: str, *texts: str) -> list[Any]:
    found = await asyncio.gather(*(score_answer(name, asked(text)) for text in texts), return_exceptions=True)
    return [one.value if isinstance(one, Score) else one for one in found]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_requests_that_come_together_are_scored_together_and_at_most_so_many_at_once(
    named: Callable[..., str], kind: str
) -> None:
    sizes: list[int] = []

    def plain(requests: Sequence[ScoringRequest]) -> list[float]:
        sizes.append(len(requests))
        return [float(one.answer or 0) for one in requests]

    async def awaited(requests: Sequence[ScoringRequest]) -> list[float]:
        return plain(requests)

    name = named(plain if kind == "plain" else awaited)
    assert await scores(name, *map(str, range(10))) == [float(k) for k in range(10)]
    assert sizes == [4, 4, 2]
    score = await score_answer(name, asked("7"))
    assert (score.value, score.details["scorer"]) == (7.0, "batched")


async def test_one_request_that_fails_fails_alone(named: Callable[..., str]) -> None:
    def all_or_none(requests: Sequence[ScoringRequest]) -> list[float]:
        return [1 / float(one.answer or 0) for one in requests]

    found = await scores(named(all_or_none), "1", "0", "2", "4")
    assert [found[0], *found[2:]] == [1.0, 0.5, 0.25]
    assert isinstance(found[1], ScorerFailed)
    assert "ZeroDivisionError" in str(found[1])


async def test_an_exception_in_the_list_is_the_failure_of_its_request(named: Callable[..., str]) -> None:
    calls = 0

    def some(requests: Sequence[ScoringRequest]) -> list[Any]:
        nonlocal calls
        calls += 1
        return [ValueError("no such unit") if one.answer == "?" else Score(0.5) for one in requests]

    found = await scores(named(some), "1", "?", "3")
    assert (found[0], found[2], calls) == (0.5, 0.5, 1)
    assert isinstance(found[1], ScorerFailed)
    assert "no such unit" in str(found[1])


@pytest.mark.parametrize("wrong", [[1.0], 1.0, "1111", None, [float("nan")] * 4])
async def test_what_is_no_list_of_as_many_numbers_is_a_failure_of_each(named: Callable[..., str], wrong: Any) -> None:
    found = await scores(named(lambda requests: wrong), "1", "2", "3", "4")
    assert all(isinstance(one, ScorerFailed | OwnCodeFailed) for one in found), found


async def test_a_batch_that_hangs_fails_in_time_and_the_next_one_is_scored(
    named: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "TIMEOUT_S", 0.2)

    async def hangs(requests: Sequence[ScoringRequest]) -> list[float]:
        if any(one.answer == "hang" for one in requests):
            await asyncio.sleep(1000)  # longer than TIMEOUT_S
        return [1.0] * len(requests)

    begun = time.monotonic()
    found = await scores(named(hangs), "1", "hang", "3", "4", "5")
    assert [isinstance(one, ScorerFailed) for one in found] == [True] * 4 + [False]
    assert (found[4], time.monotonic() - begun < 60) == (1.0, True)


async def test_a_request_whose_episode_ended_is_not_scored(named: Callable[..., str]) -> None:
    seen: list[str | None] = []
    first = asyncio.Event()

    async def slow(requests: Sequence[ScoringRequest]) -> list[float]:
        seen.extend(one.answer for one in requests)
        first.set()
        await asyncio.sleep(0.05)  # while the others wait
        return [1.0] * len(requests)

    name = named(slow, size=1)
    tasks = [asyncio.create_task(score_answer(name, asked(text))) for text in "abc"]
    await first.wait()
    tasks[1].cancel()
    assert [one.value for one in (await tasks[0], await tasks[2])] == [1.0, 1.0]
    assert seen == ["a", "c"]


def test_a_batch_has_a_size(named: Callable[..., str]) -> None:
    for size in (0, 10_000):
        with pytest.raises(ConfigError, match="expected 1 to 1024"):
            named(lambda requests: [], size=size)
