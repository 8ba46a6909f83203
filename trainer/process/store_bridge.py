"""The store, for a trainer whose main thread belongs to torch: a second thread runs the event loop.

The driver stays a plain list of steps, heartbeats go on while a step computes, and collectives are only ever called from
the main thread. Every call has a time-out.
"""

import asyncio
import inspect
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

from shared.store import Store

T = TypeVar("T")


class StoreBridge:
    """`bridge(store.tasks.get(...))` runs a coroutine of the store and returns its result."""

    def __init__(self, connection_string: str, run: str, *, must_exist: bool = False, read_only: bool = False) -> None:
        """`must_exist`: entering raises ConfigError where there is no such run, and makes none. `read_only`: likewise, without
        indexes."""
        self._connection_string = connection_string
        self._run = run
        self._must_exist, self._read_only = must_exist, read_only
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="store", daemon=True)
        self._stack = AsyncExitStack()
        self._under_way: set[Coroutine[Any, Any, Any]] = set()
        self.store: Store

    def __enter__(self) -> Self:
        self._thread.start()
        opened = Store.open(self._connection_string, self._run, must_exist=self._must_exist, read_only=self._read_only)
        self.store = self(self._stack.enter_async_context(opened))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _close(self) -> None:
        """What is under way is cancelled; a verb that the database has heard of ends first (`shared/store/retry.py`)."""
        remaining = {
            task for task in asyncio.all_tasks() - {asyncio.current_task()} if task.get_coro() in self._under_way
        }
        for task in remaining:
            if not task.cancelling():
                task.cancel()
        if remaining:
            await asyncio.wait(remaining)
        await self._stack.aclose()

    def __call__(self, work: Coroutine[Any, Any, T], timeout_s: float = 120.0) -> T:
        """Raises what the coroutine raises, TimeoutError after `timeout_s`."""
        future = self.background(work)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, T], timeout_s: float) -> "Future[T]":
        """The same without waiting: the future ends with what the coroutine returns or raises, or with TimeoutError."""
        return self.background(asyncio.wait_for(work, timeout_s))

    def background(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start a coroutine that runs concurrently with the driver; cancel the returned future to end it."""
        ended = {one for one in self._under_way if inspect.getcoroutinestate(one) == inspect.CORO_CLOSED}
        self._under_way = (self._under_way - ended) | {work}
        return asyncio.run_coroutine_threadsafe(work, self._loop)
