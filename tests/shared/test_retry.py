"""Verbs survive outages, and never lose a cancellation."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
from pymongo.errors import AutoReconnect
from pymongo.lock import Condition, Lock, _async_cond_wait

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

    async def ask_late(self) -> str:
        return await self.answer_late()

    async def answer_late(self) -> str:
        await asyncio.sleep(0.2)
        self.calls += 1
        return "answer"

    async def lose_a_cancellation(self) -> str:
        """What Python 3.11's wait_for does when the answer and the cancellation come at once."""
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return "answer"


@survives_outages
class Selection:
    """PyMongo's own lock, and how it waits for a server."""

    TIMEOUT_S = 0.1

    def __init__(self) -> None:
        self.lock = Lock()
        self.begun = asyncio.Event()
        self._changed = Condition(self.lock)

    async def wait_for_a_server(self) -> None:
        async with self.lock:
            self.begun.set()
            await _async_cond_wait(self._changed, self.TIMEOUT_S)


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


async def test_a_caller_that_is_cancelled_before_the_first_command_sends_nothing() -> None:
    verbs = Verbs()

    async def work(ask: Callable[[], Awaitable[str]]) -> None:
        me = asyncio.current_task()
        assert me is not None
        me.cancel()  # as another task does, while this one has something else to do
        await ask()

    for ask in (verbs.ask, verbs.ask_late):
        task = asyncio.create_task(work(ask))
        with pytest.raises(asyncio.CancelledError):
            await task
    waiting = asyncio.create_task(verbs.ask())
    asyncio.get_running_loop().call_soon(waiting.cancel)  # it has called the verb, which has not begun
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.sleep(0.3)
    assert verbs.calls == 0
    assert await verbs.ask() == "answer"


async def test_a_cancellation_waits_for_the_answer() -> None:
    verbs = Verbs()
    for cancellations in (1, 3):
        task = asyncio.create_task(verbs.answer_late())
        for _ in range(cancellations):
            await asyncio.sleep(0.01)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert verbs.calls == 2


async def test_a_cancellation_leaves_the_drivers_lock_free() -> None:
    """Cancelled as the selection of a server times out, while another task has the lock: it would stay closed for ever."""
    verbs = Selection()
    waiting = asyncio.create_task(verbs.wait_for_a_server())
    await verbs.begun.wait()
    async with verbs.lock:
        await asyncio.sleep(3 * Selection.TIMEOUT_S)  # it has timed out meanwhile, and wants the lock
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(10), verbs.lock:
        assert verbs.lock.locked()


async def test_a_cancellation_that_the_driver_swallows_still_ends_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "LET_END_S", 0.1)
    task = asyncio.create_task(Verbs().lose_a_cancellation())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(20):
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


async def test_a_verb_inside_a_verb_has_no_time_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "LET_END_S", 0.05)
    verbs = Verbs()
    task = asyncio.create_task(verbs.ask_late())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert verbs.calls == 0, "the inner verb is cancelled with the outer one"
