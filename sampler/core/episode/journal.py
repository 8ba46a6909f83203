"""Writes an episode's requests: each before it is asked, and again with its reply, tool calls and score.

    open ─▶ written, running ─▶ answered, amended ─▶ written with the next request of its thread, or at the end

What a thread did is written in the command that opens its next request, so a turn costs one command. A request belongs to its
thread and is never "the last one": threads write independently of each other.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, ClassVar

from shared.documents import DispatchedSamplingTask
from shared.documents.agent_sessions import ClientRequest
from shared.documents.states import DispatchStatus
from shared.errors import DoesNotFit
from shared.outside_text import error_text
from shared.store.records import RecordVerbs

Thread = tuple[str, str | None]  # policy and thread


class Journal:
    """`numbering`: held while a request gets its number and is written. `unanswered`: the status of a request without a reply
    whose thread asks again."""

    unanswered: ClassVar[DispatchStatus] = DispatchStatus.FAILED

    def __init__(self, records: RecordVerbs) -> None:
        self.numbering: AbstractAsyncContextManager[None] = nullcontext()
        self._records = records
        self._unwritten: dict[str, DispatchedSamplingTask] = {}  # by id, in order
        self._last: dict[Thread, str] = {}  # the last request of each thread
        self._clients: dict[Thread, ClientRequest] = {}
        self._closing: set[str] = set()  # sent to the database and not confirmed

    @asynccontextmanager
    async def answering(self, dispatch: DispatchedSamplingTask) -> AsyncIterator[None]:
        """The block asks for the reply. An error in it, or a cancellation, is why the request has none."""
        try:
            yield
        except BaseException as exc:  # cancelled too: a request without a reply is stored with the reason
            await self._unanswered(dispatch.id, exc)
            raise

    def expect(self, thread: Thread, client: ClientRequest) -> None:
        """The thread's next request answers this one of an agent."""
        self._clients[thread] = client

    async def answered(self, dispatch_id: str) -> None:
        """The request has its reply."""

    async def _unanswered(self, dispatch_id: str, exc: BaseException) -> None:
        if self.is_unwritten(dispatch_id):
            self.amend(dispatch_id, error=error_text(exc))

    async def open(self, dispatch: DispatchedSamplingTask, thread: Thread) -> None:
        """Write a request before it is asked, and what became of its thread's last one."""
        dispatch = dispatch.model_copy(update={"client": self._clients.pop(thread, None)})
        before = self._unwritten.get(self._last.get(thread, ""))
        closing = [] if before is None else [ended(before, self.unanswered)]
        self._unwritten[dispatch.id] = dispatch
        self._last[thread] = dispatch.id
        self._closing |= {one.id for one in closing}
        await self._write(dispatch, closing)
        for one in closing:
            self._unwritten.pop(one.id, None)

    def resume(self, dispatch: DispatchedSamplingTask, thread: Thread) -> None:
        """A request of the episode that is read from the database: it may be amended if it was not closed."""
        if dispatch.finished_at is None:
            self._unwritten[dispatch.id] = dispatch
        self._last[thread] = dispatch.id

    async def _write(self, dispatch: DispatchedSamplingTask, closing: Sequence[DispatchedSamplingTask]) -> None:
        await self._records.open_dispatch(dispatch, closing=closing)

    def amend(self, dispatch_id: str, **values: Any) -> None:
        """Change what will be written of a request. Raises ValueError if it has been written already."""
        if dispatch_id not in self._unwritten or dispatch_id in self._closing:
            raise ValueError(
                f"turn {dispatch_id} is written: its thread has asked again; attach results to a turn before that"
            )
        self._unwritten[dispatch_id] = self._unwritten[dispatch_id].model_copy(update=values)

    def is_unwritten(self, dispatch_id: str) -> bool:
        return dispatch_id in self._unwritten and dispatch_id not in self._closing

    def newest(self) -> str:
        """The newest request with a reply. Raises ValueError if there is none, or if it is written."""
        answered = [one.id for one in self._unwritten.values() if one.response is not None]
        if not answered:
            raise ValueError(
                "no reply to attach results to: the model has not replied, or the reply was written when its thread asked again"
            )
        return answered[-1]

    async def close(self, unanswered: DispatchStatus, *, failed: bool) -> None:
        """Write everything. `unanswered`: status of requests without a reply.

        Raises DoesNotFit; with `failed`, stores the error in place of the contents instead.
        """
        closed = [ended(dispatch, unanswered) for dispatch in self._unwritten.values()]
        self._closing |= {one.id for one in closed}
        try:
            await self._records.close_dispatches(closed)
        except DoesNotFit:
            if not failed:
                raise
            await self._close_one_by_one(closed)
        for one in closed:  # a task that the sampler left running may have asked meanwhile
            self._unwritten.pop(one.id, None)

    async def _close_one_by_one(self, ended: Sequence[DispatchedSamplingTask]) -> None:
        for dispatch in ended:
            try:
                await self._records.close_dispatches([dispatch])
            except DoesNotFit as exc:
                await self._records.close_dispatches([_without_contents(dispatch, exc)])


def ended(dispatch: DispatchedSamplingTask, unanswered: DispatchStatus) -> DispatchedSamplingTask:
    """The request as it is closed. `unanswered`: its status if it has no reply."""
    if dispatch.status is not DispatchStatus.RUNNING:
        return dispatch
    return dispatch.model_copy(update={"status": unanswered})


def _without_contents(dispatch: DispatchedSamplingTask, exc: DoesNotFit) -> DispatchedSamplingTask:
    """The storable part of a request whose reply or tool results do not fit. Its episode failed and is never trained."""
    status = DispatchStatus.FAILED if dispatch.status is DispatchStatus.COMPLETED else dispatch.status
    return dispatch.model_copy(update={"response": None, "tool_calls": [], "status": status, "error": str(exc)})
