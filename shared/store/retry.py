"""Retries verbs during an outage of the database, up to `PATIENCE_S`; every verb may be repeated.

A verb whose caller is cancelled before its first command sends nothing. One that is cancelled later ends first, for `LET_END_S`
at most, and is cancelled then. One that arrives as the selection of a server times out would leave PyMongo's lock
closed for ever, so that no later command of the process is sent.
"""

import asyncio
import contextlib
import functools
import inspect
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from pymongo.errors import (
    BulkWriteError,
    ConnectionFailure,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
)

from shared.errors import StoreRefused, StoreUnavailable
from shared.store.connecting import REFUSALS, refusal
from shared.store.fits import UNFIT, raise_unfit

log = logging.getLogger(__name__)

LET_END_S = 12.0  # longer than PyMongo waits for a server
PATIENCE_S = 90.0  # a restart of mongod takes seconds, an election about ten
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
DUPLICATE_KEY = 11000
# Transient errors while a replica set elects, loses or regains its primary, starts or stops: a retry may succeed.
PASSING = frozenset(
    {
        6,  # HostUnreachable
        7,  # HostNotFound
        43,  # CursorNotFound: its member has left
        64,  # WriteConcernFailed: no majority within wtimeout
        89,  # NetworkTimeout
        91,  # ShutdownInProgress
        100,  # UnsatisfiableWriteConcern
        112,  # WriteConflict
        133,  # FailedToSatisfyReadPreference
        134,  # ReadConcernMajorityNotAvailableYet
        175,  # QueryPlanKilled
        189,  # PrimarySteppedDown
        202,  # NetworkInterfaceExceededTimeLimit
        237,  # CursorKilled
        246,  # SnapshotUnavailable
        262,  # ExceededTimeLimit
        317,  # ConnectionPoolExpired
        365,  # TemporarilyUnavailable
        9001,  # SocketException
        10058,  # LegacyNotPrimary
        10107,  # NotWritablePrimary
        11600,  # InterruptedAtShutdown
        11602,  # InterruptedDueToReplStateChange
        13435,  # NotPrimaryNoSecondaryOk
        13436,  # NotPrimaryOrSecondary
    }
)
PASSING_LABELS = ("RetryableWriteError", "TransientTransactionError", "SystemOverloadedError")

_is_inside: ContextVar[bool] = ContextVar("inside_a_verb", default=False)  # verbs that a verb calls end with it

C = TypeVar("C", bound=type)
T = TypeVar("T")
Verb = TypeVar("Verb", bound=Callable[..., Awaitable[Any]])


def survives_outages(verbs: C) -> C:
    """Class decorator: retries every public coroutine of `verbs` while the database cannot be reached.

    Raises StoreUnavailable after `PATIENCE_S`; immediately DoesNotFit for a document that MongoDB rejects, and StoreRefused if
    the user lost its rights or was removed. The verbs are idempotent.
    """
    for name, method in list(vars(verbs).items()):
        if not name.startswith("_") and inspect.iscoroutinefunction(method):
            setattr(verbs, name, repeated(method))
    return verbs


def repeated(method: Verb) -> Verb:
    """Decorator for one coroutine function; see `survives_outages`."""

    @functools.wraps(method)
    async def verb(*args: Any, **kwargs: Any) -> Any:
        began, pause_s = time.monotonic(), FIRST_PAUSE_S
        while True:
            try:
                return await _ended_in_any_case(functools.partial(method, *args, **kwargs))
            except PyMongoError as exc:
                if isinstance(exc, OperationFailure) and exc.code in REFUSALS:
                    raise StoreRefused(f"{method.__name__}: {refusal(exc)}") from exc
                if not is_outage(exc):
                    if isinstance(exc, OperationFailure):
                        raise_unfit(method.__name__, exc)
                    raise
                lasted_s = time.monotonic() - began
                if lasted_s > PATIENCE_S:
                    raise StoreUnavailable(
                        f"{method.__name__}: MongoDB has not answered for {lasted_s:.0f} s: {exc}"
                    ) from exc
                log.warning("database away verb=%s for_s=%.1f %s", method.__name__, lasted_s, type(exc).__name__)
            except UNFIT as exc:
                raise_unfit(method.__name__, exc)
                raise
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    return verb  # type: ignore[return-value]  # of the same signature


def is_outage(exc: PyMongoError) -> bool:
    """Whether a retry of the command may succeed: no connection, no primary, or no majority.

    A write without a majority's acknowledgement may or may not survive the next election. Only its repetition, which waits
    for a majority even if it changes nothing, makes sure.
    """
    if isinstance(exc, BulkWriteError):
        details = exc.details or {}
        codes = {error["code"] for error in details.get("writeErrors", ())}
        unacknowledged = bool(details.get("writeConcernErrors")) and codes <= PASSING | {DUPLICATE_KEY}
        return unacknowledged or (bool(codes) and codes <= PASSING)
    if isinstance(exc, ConnectionFailure | WriteConcernError) or exc.timeout:
        return True
    passing = isinstance(exc, OperationFailure) and exc.code in PASSING
    return passing or any(map(exc.has_error_label, PASSING_LABELS))


async def _ended_in_any_case(method: Callable[[], Awaitable[T]]) -> T:
    if _is_inside.get():
        return await method()

    async def verb() -> T:
        if answer.cancelled():
            raise asyncio.CancelledError
        _is_inside.set(True)
        return await method()

    task = asyncio.ensure_future(verb())
    answer = asyncio.shield(task)
    try:
        return await answer
    except asyncio.CancelledError:
        if not await _ends(task, LET_END_S):
            task.cancel()  # no answer to what was sent: a server that hangs
            await _ends(task, None)
        if not task.cancelled():
            task.exception()  # its error is told to no one
        raise


async def _ends(task: asyncio.Future[T], within_s: float | None) -> bool:
    """However often the waiting task is cancelled meanwhile."""
    end = math.inf if within_s is None else time.monotonic() + within_s
    while not task.done() and time.monotonic() < end:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task], timeout=None if within_s is None else end - time.monotonic())
    return task.done()
