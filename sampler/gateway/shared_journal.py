"""The journal of an attempt that other gateway processes may continue at any time.

Each request is written before it is asked, as in every journal, but with a number that no other process may have used: if one
did, this process does not know the whole attempt, and reads it again (`StaleAttempt`). Each reply is written as soon as it is
known, before the client is told.
"""

import asyncio
import math
import secrets
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from sampler.core.episode.journal import Journal, ended
from sampler.gateway.exchange import GatewayError, Problem, RetryRequest
from shared.documents import DispatchedSamplingTask
from shared.documents.states import DispatchStatus
from shared.outside_text import error_text
from shared.store import Store
from shared.store.sessions import Opened

T = TypeVar("T")
ENDED = "the attempt that this key belongs to has ended"


class StaleAttempt(RetryRequest):
    """Another process has continued the attempt."""

    def __init__(self) -> None:
        super().__init__("another gateway process has continued this attempt at the same time; ask again")


class SharedJournal(Journal):
    """`played_at`: when the database was last seen to say that the attempt has not ended (monotonic seconds)."""

    unanswered = DispatchStatus.CANCELLED  # another process asked, and the client sent the request again

    def __init__(self, store: Store, worker: str) -> None:
        super().__init__(store.records)
        self.numbering = asyncio.Lock()
        self._store = store
        self._name = f"{worker} {secrets.token_hex(4)}"  # a process may read an attempt several times
        self._is_stale = False
        self.played_at = -math.inf

    async def _write(self, dispatch: DispatchedSamplingTask, closing: Sequence[DispatchedSamplingTask]) -> None:
        """Raises StaleAttempt, and GatewayError if the attempt has ended."""
        if self._is_stale:  # the next number may be free, and yet turns before it are not known here
            del self._unwritten[dispatch.id]
            raise StaleAttempt
        assert dispatch.client is not None, "the session expects each request"
        named = dispatch.client.model_copy(update={"requested_by": self._name})
        self._unwritten[dispatch.id] = dispatch = dispatch.model_copy(update={"client": named})
        queried_at = time.monotonic()
        opened = await finished(self._store.sessions.open_turn(dispatch, closing))
        if opened is Opened.TAKEN:
            self._is_stale = True
            del self._unwritten[dispatch.id]
            raise StaleAttempt
        if opened is Opened.ENDED:
            raise GatewayError(Problem.NO_KEY, ENDED)
        self.played_at = queried_at

    async def answered(self, dispatch_id: str) -> None:
        if not await finished(self._store.sessions.save_reply(self._unwritten[dispatch_id])):
            raise GatewayError(Problem.NO_KEY, ENDED)

    async def _unanswered(self, dispatch_id: str, exc: BaseException) -> None:
        """A client that left cancelled its request; any other error failed it. A reply that is written counts, although its
        client is not told: the session, which goes on without it, is stale."""
        if not self.is_unwritten(dispatch_id):
            return
        if self._unwritten[dispatch_id].response is not None and isinstance(exc, asyncio.CancelledError):
            self._is_stale = True
            return
        is_cancelled = isinstance(exc, asyncio.CancelledError | GatewayError)
        self.amend(dispatch_id, error=error_text(exc))
        status = DispatchStatus.CANCELLED if is_cancelled else DispatchStatus.FAILED
        dispatch = ended(self._unwritten.pop(dispatch_id), status)
        await finished(self._store.records.close_dispatches([dispatch]))


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """The result. A cancellation waits for it, through an outage too: a number is used, though its client has left."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
