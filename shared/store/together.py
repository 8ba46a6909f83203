"""One command for what several callers ask for at the same time, as databases write their logs.

    the first ─▶ a command ─▶ its answer
    those that come meanwhile wait ─▶ one command for all of them ─▶ each its own answer

A command costs this process far more than the writes in it. One caller alone waits for nothing, and the busier the process, the
more callers share a command.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from pymongo import UpdateOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import PyMongoError

from shared.store.retry import is_outage

T = TypeVar("T")
R = TypeVar("R")
PendingQuestion = tuple[T, asyncio.Future[R]]

MOST = 64  # callers that share a command


class Together(Generic[T, R]):
    """`work` answers several questions, in their order, and may be repeated. An error that is not an outage may be the fault of
    one question alone: then each is asked by itself."""

    def __init__(self, work: Callable[[Sequence[T]], Awaitable[Sequence[R]]]) -> None:
        self._work = work
        self._waiting: deque[PendingQuestion[T, R]] = deque()
        self._running: asyncio.Task[None] | None = None

    async def ask(self, question: T) -> R:
        """A caller that is cancelled does not take back its question once it is sent."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="together")
        return await answer

    async def _run(self) -> None:
        try:
            while self._waiting:
                taken = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
                await self._answer([each for each in taken if not each[1].cancelled()])
        finally:
            self._running = None
            while self._waiting:  # only if this task is cancelled
                self._waiting.popleft()[1].cancel()

    async def _answer(self, batch: "Sequence[PendingQuestion[T, R]]") -> None:
        if not batch:
            return
        try:
            results = await self._work([question for question, _ in batch])
        except asyncio.CancelledError:
            for _, answer in batch:
                answer.cancel()
            raise
        except Exception as exc:  # noqa: BLE001 - each caller raises it, as if it had sent the command itself
            await self._failed(batch, exc)
            return
        if len(results) != len(batch):  # whose is which is not known
            _raise(batch, RuntimeError(f"{len(results)} answers to {len(batch)} questions; expected as many"))
            return
        for (_, answer), each in zip(batch, results, strict=True):
            if not answer.done():
                answer.set_result(each)

    async def _failed(self, batch: "Sequence[PendingQuestion[T, R]]", exc: Exception) -> None:
        if len(batch) > 1 and not (isinstance(exc, PyMongoError) and is_outage(exc)):
            for each in batch:
                await self._answer([each])
            return
        _raise(batch, exc)


class BatchedUpdates(Together[Sequence[UpdateOne], None]):
    """The updates of several callers, in one command and in their order. Each must be one that may be repeated."""

    def __init__(self, collection: AsyncCollection[dict[str, Any]]) -> None:
        self._collection = collection
        super().__init__(self._write)

    async def _write(self, batch: Sequence[Sequence[UpdateOne]]) -> list[None]:
        await self._collection.bulk_write([update for updates in batch for update in updates])
        return [None] * len(batch)


def _raise(batch: "Sequence[PendingQuestion[T, R]]", exc: Exception) -> None:
    for _, answer in batch:
        if not answer.done():
            answer.set_exception(exc)
