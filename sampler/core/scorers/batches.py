"""Calls a scorer with many requests at once: `@register_scorer("model", batch_size=32)`.

score_answer ─┐
score_answer ─┼─▶ waiting ─▶ at most batch_size of them ─▶ one call ─▶ a value for each, or an exception for one of them
score_answer ─┘                  one call at a time             └─ it raises: each of them alone, so that only its cause fails
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from sampler.core.time_limits import queued
from shared.processes.waits import Wait

GATHER_S = 0.01  # for requests that come together
MAX_BATCH_SIZE = 1024


@dataclass(frozen=True, slots=True)
class _Waiting:
    """`begun`: its batch is scored now; cancelled: its caller has given up."""

    request: Any
    answer: asyncio.Future[Any]
    begun: asyncio.Future[None]


class Batches:
    """`score`: what the scorer returns for a list of requests. Calls of it follow each other."""

    def __init__(self, score: Callable[[Sequence[Any]], Awaitable[Any]], most: int) -> None:
        self._score, self._most = score, most
        self._waiting: deque[_Waiting] = deque()
        self._running: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def one(self, request: Any) -> Any:
        """The value for the request. Raises what the scorer raised for it alone, and TypeError where the list does not fit."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # what waited on another loop has ended with it
            self._loop, self._running = loop, None
            self._waiting.clear()
        answer: asyncio.Future[Any] = loop.create_future()
        waiting = _Waiting(request, answer, loop.create_future())
        self._waiting.append(waiting)
        if self._running is None or self._running.done():  # in no caller's context: its limits are not the batch's
            self._running = loop.create_task(self._run(), name="batches of a scorer", context=Context())
        wait = Wait("a batch of a scorer", "the batch before it is scored", "that ends, each within its limit")
        async with queued(wait):  # every batch before it has its own limit
            await waiting.begun
        return await answer

    async def _run(self) -> None:
        await asyncio.sleep(GATHER_S)  # for requests that come together
        while batch := self._next():
            await self._answer(batch)

    def _next(self) -> list[_Waiting]:
        """Without those whose caller has given up."""
        batch: list[_Waiting] = []
        while self._waiting and len(batch) < self._most:
            one = self._waiting.popleft()
            if not (one.answer.done() or one.begun.done()):
                one.begun.set_result(None)
                batch.append(one)
        return batch

    async def _answer(self, batch: Sequence[_Waiting]) -> None:
        try:
            scores = await self._score([one.request for one in batch])
        except TimeoutError as exc:  # each alone would take as long again
            _fail(batch, exc)
            return
        except BaseException as exc:  # noqa: BLE001 - user code: each caller raises it, as if it had called the scorer itself
            if len(batch) == 1 or isinstance(exc, asyncio.CancelledError):
                _fail(batch, exc)
                return
            for one in batch:
                if not one.answer.done():
                    await self._answer([one])
            return
        if not isinstance(scores, Sequence) or isinstance(scores, str | bytes) or len(scores) != len(batch):
            expected = f"expected a list of {len(batch)}: one value for each request"
            _fail(batch, TypeError(f"returned {type(scores).__name__}; {expected}"))
            return
        for one, value in zip(batch, scores, strict=True):
            if not one.answer.done():
                one.answer.set_result(value)


def _fail(batch: Sequence[_Waiting], exc: BaseException) -> None:
    for one in batch:
        if not one.answer.done():
            one.answer.set_exception(RuntimeError("StopIteration") if isinstance(exc, StopIteration) else exc)
