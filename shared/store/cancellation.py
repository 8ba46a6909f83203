"""Every cancellation of a wait for MongoDB arrives: Ctrl-C, `asyncio.timeout`, the end of a task group.

PyMongo waits with `asyncio.wait_for`. Before Python 3.12 that returns an answer and drops the cancellation that arrives together
with it, so a loop over a cursor went on to its end. PyMongo's modules get Python 3.12's instead, once, for every command and
every cursor of the process.
"""

import asyncio
import sys
from collections.abc import Awaitable
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")


async def wait_for(awaitable: Awaitable[T], timeout: float | None) -> T:
    """As of Python 3.12: within `timeout` seconds, None without a limit. Raises TimeoutError."""
    if timeout is not None and timeout <= 0:
        future = asyncio.ensure_future(awaitable)
        if future.done():
            return future.result()
        future.cancel()
        try:
            return await future
        except asyncio.CancelledError as exc:
            raise TimeoutError from exc
    async with asyncio.timeout(timeout):
        return await awaitable


class _Asyncio(ModuleType):
    """The module `asyncio` with the function above."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)


def let_cancellations_arrive() -> None:
    """No effect from Python 3.12 on, and of a second call."""
    if sys.version_info >= (3, 12):
        return
    from pymongo import lock, network_layer, pool_shared

    module: Any = _Asyncio("asyncio")
    module.wait_for = wait_for
    modules: list[Any] = [network_layer, pool_shared]
    for user in modules:
        user.asyncio = module
    locks: Any = lock
    locks.wait_for = wait_for
