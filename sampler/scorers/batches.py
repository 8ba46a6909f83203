"""Calls a scorer with many requests at once: `@register_scorer("model", batch_size=32)`.

score_answer ─┐
score_answer ─┼─▶ waiting ─▶ at most batch_size of them ─▶ one call ─▶ a value for each, or an exception for one of them
score_answer ─┘                  one call at a time             └─ it raises: each of them alone, so that only its cause fails
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

GATHER_S = 0.01  # for requests that come together
MAX_BATCH_SIZE = 1024


class Batches:
    """`score`: what the scorer returns for a list of requests. Calls of it follow each other."""

    def __init__(self, score: Callable[[Sequence[Any]], Awaitable[Any]], most: int) -> None:
        self._score, self._most = score, most
        self._waiting: deque[tuple[Any, asyncio.Future[Any]]] = deque()
        self._running: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def one(self, request: Any) -> Any:
        """The value for the request. Raises what the scorer raised for it alone, and TypeError where the list does not fit."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # what waited on another loop has ended with it
            self._loop, self._running = loop, None
            self._waiting.clear()
        answer: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((request, answer))
        if self._running is None or self._running.done():
            self._running = loop.create_task(self._run(), name="batches of a scorer")
        return await answer

    async def _run(self) -> None:
        await asyncio.sleep(GATHER_S)  # for requests that come together
        while batch := self._next():
            await self._answer(batch)

    def _next(self) -> list[tuple[Any, asyncio.Future[Any]]]:
        """Without those whose caller has given up."""
        batch: list[tuple[Any, asyncio.Future[Any]]] = []
        while self._waiting and len(batch) < self._most:
            request, answer = self._waiting.popleft()
            if not answer.done():
                batch.append((request, answer))
        return batch

    async def _answer(self, batch: Sequence[tuple[Any, asyncio.Future[Any]]]) -> None:
        try:
            found = await self._score([request for request, _ in batch])
        except TimeoutError as exc:  # each alone would take as long again
            _fail(batch, exc)
            return
        except BaseException as exc:  # noqa: BLE001 - user code: each caller raises it, as if it had called the scorer itself
            if len(batch) == 1 or isinstance(exc, asyncio.CancelledError):
                _fail(batch, exc)
                return
            for one in batch:
                if not one[1].done():
                    await self._answer([one])
            return
        if not isinstance(found, Sequence) or isinstance(found, str | bytes) or len(found) != len(batch):
            expected = f"expected a list of {len(batch)}: one value for each request"
            _fail(batch, TypeError(f"returned {type(found).__name__}; {expected}"))
            return
        for (_, answer), value in zip(batch, found, strict=True):
            if not answer.done():
                answer.set_result(value)


def _fail(batch: Sequence[tuple[Any, asyncio.Future[Any]]], exc: BaseException) -> None:
    for _, answer in batch:
        if not answer.done():
            answer.set_exception(RuntimeError("StopIteration") if isinstance(exc, StopIteration) else exc)
