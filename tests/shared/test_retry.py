"""Verbs survive outages, and never lose a cancellation."""

import asyncio
import contextlib

import pytest
from pymongo.errors import AutoReconnect

from shared.errors import StoreUnavailable
from shared.store import retry
from shared.store.retry import survives_outages


@survives_outages
class Verbs:
    def __init__(self, outages: int = 0) -> None:
        self.outages = outages
        self.calls = 0

    async def ask(self) -> str:
        self.calls += 1
        if self.calls <= self.outages:
            raise AutoReconnect("away")
        return "answer"

    async def lose_a_cancellation(self) -> str:
        """What Python 3.11's wait_for does when the answer and the cancellation come at once."""
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return "answer"


async def test_a_verb_is_repeated_until_the_database_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE_S", 0.001)
    verbs = Verbs(outages=3)
    assert await verbs.ask() == "answer"
    assert verbs.calls == 4


async def test_the_retry_limit_raises_an_error_that_names_the_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(retry, "PATIENCE_S", 0.0)
    with pytest.raises(StoreUnavailable, match=r"ask: MongoDB has not answered for .* s: away"):
        await Verbs(outages=100).ask()


async def test_a_cancellation_that_the_driver_swallows_still_ends_the_task() -> None:
    task = asyncio.create_task(Verbs().lose_a_cancellation())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_verb_of_the_cleanup_after_a_cancellation_runs_to_its_end() -> None:
    async def work() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return await Verbs().ask()
        return "never cancelled"

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "answer"
