"""Verbs survive an outage of the database: each may be repeated, so each is, until it is answered or the patience ends.

They also see to it that a cancellation is never lost: Python 3.11's `asyncio.wait_for`, which PyMongo uses inside, swallows
one that arrives in the instant in which the answer does, and a loop that was told to end would go on for ever.
"""

import asyncio
import functools
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pymongo.errors import AutoReconnect, NetworkTimeout, NotPrimaryError, WaitQueueTimeoutError, WTimeoutError

from shared.errors import StoreUnavailable

log = logging.getLogger(__name__)

PATIENCE_S = 90.0  # a restart of mongod takes seconds, an election about ten
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
OUTAGES = (AutoReconnect, NetworkTimeout, NotPrimaryError, WaitQueueTimeoutError, WTimeoutError)

C = TypeVar("C", bound=type)


def survives_outages(verbs: C) -> C:
    """Class decorator: every public coroutine of `verbs` is repeated while the database cannot be reached.

    Raises StoreUnavailable after `PATIENCE_S`. The verbs themselves see to it that a repeated write changes nothing.
    """
    for name, method in list(vars(verbs).items()):
        if not name.startswith("_") and inspect.iscoroutinefunction(method):
            setattr(verbs, name, _repeated(method))
    return verbs


def _repeated(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def verb(*args: Any, **kwargs: Any) -> Any:
        began, pause_s = time.monotonic(), FIRST_PAUSE_S
        cancelled_before = _cancel_requests()
        while True:
            try:
                result = await method(*args, **kwargs)
                if _cancel_requests() > cancelled_before:
                    raise asyncio.CancelledError
                return result
            except OUTAGES as exc:
                lasted_s = time.monotonic() - began
                if lasted_s > PATIENCE_S:
                    raise StoreUnavailable(
                        f"{method.__name__}: MongoDB has not answered for {lasted_s:.0f} s: {exc}"
                    ) from exc
                log.warning("database away verb=%s for_s=%.1f %s", method.__name__, lasted_s, type(exc).__name__)
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    return verb


def _cancel_requests() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
