"""Calls of the workers' methods, and the watch over vLLM's processes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Awaitable
from typing import Any, TypeVar

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

log = logging.getLogger(__name__)

WATCH_S = 1.0
T = TypeVar("T")


class WorkerFailed(Exception):
    """A worker's method raised; the message names the method and the worker's error."""


class Workers:
    """`failure`: why vLLM's core has ended. Then this process ends with status 1, for its keeper to start it again."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm
        self.failure: BaseException | None = None

    async def call(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """What each worker returned. Raises WorkerFailed, and EngineDeadError without a core."""
        found: list[Any] = await self.wait_for(method, self._llm.collective_rpc(method, args=args, kwargs=kwargs))
        return found

    async def wait_for(self, what: str, work: Awaitable[T]) -> T:
        """What one of vLLM's own calls of its workers returns. Raises WorkerFailed, and EngineDeadError without a core."""
        try:
            return await work
        except EngineDeadError as error:
            self.fail(error)
            raise
        except Exception as error:  # vLLM raises plain Exception: a worker's error reaches it as text alone
            raise WorkerFailed(f"{what}: {type(error).__name__}: {error}"[:500]) from error

    async def end_with_this_process(self) -> None:
        """A killed server leaves vLLM's core and workers behind otherwise: they wait for requests for ever."""
        await self.call("tandem_end_with", os.getpid(), socket.gethostname())

    async def watch(self) -> None:
        """vLLM's core may die while nothing is asked of it."""
        while not self._llm.errored:  # noqa: ASYNC110  # it is another process that ends
            await asyncio.sleep(WATCH_S)
        self.fail(EngineDeadError())

    def fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            log.critical("vLLM's core has ended: the engine exits")
            signal.raise_signal(signal.SIGTERM)
