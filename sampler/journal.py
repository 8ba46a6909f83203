"""Writes an episode's requests: each before it is asked, and again with its reply, tool calls and score.

    open ─▶ written, running ─▶ answered, amended ─▶ written with the next request of its thread, or at the end

What a thread did is written in the command that opens its next request, so a turn costs one command. A request belongs to its
thread and is never "the last one": threads write independently of each other.
"""

from collections.abc import Sequence
from typing import Any

from shared.documents import DispatchedSamplingTask
from shared.documents.states import DispatchStatus
from shared.errors import DoesNotFit
from shared.store.records import RecordVerbs

Thread = tuple[str, str | None]  # policy and thread


class Journal:
    def __init__(self, records: RecordVerbs) -> None:
        self._records = records
        self._unwritten: dict[str, DispatchedSamplingTask] = {}  # by id, in order
        self._last: dict[Thread, str] = {}  # the last request of each thread
        self._closing: set[str] = set()  # sent to the database and not confirmed

    async def open(self, dispatch: DispatchedSamplingTask, thread: Thread) -> None:
        """Write a request before it is asked, and what became of its thread's last one."""
        before = self._unwritten.get(self._last.get(thread, ""))
        closing = [] if before is None else [_ended(before, DispatchStatus.FAILED)]
        self._unwritten[dispatch.id] = dispatch
        self._last[thread] = dispatch.id
        self._closing |= {one.id for one in closing}
        await self._records.open_dispatch(dispatch, closing=closing)
        for one in closing:
            self._unwritten.pop(one.id, None)

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
        ended = [_ended(dispatch, unanswered) for dispatch in self._unwritten.values()]
        self._closing |= {one.id for one in ended}
        try:
            await self._records.close_dispatches(ended)
        except DoesNotFit:
            if not failed:
                raise
            await self._close_one_by_one(ended)
        for one in ended:  # a task that the sampler left running may have asked meanwhile
            self._unwritten.pop(one.id, None)

    async def _close_one_by_one(self, ended: Sequence[DispatchedSamplingTask]) -> None:
        for dispatch in ended:
            try:
                await self._records.close_dispatches([dispatch])
            except DoesNotFit as exc:
                await self._records.close_dispatches([_without_contents(dispatch, exc)])


def _ended(dispatch: DispatchedSamplingTask, unanswered: DispatchStatus) -> DispatchedSamplingTask:
    if dispatch.status is not DispatchStatus.RUNNING:
        return dispatch
    return dispatch.model_copy(update={"status": unanswered})


def _without_contents(dispatch: DispatchedSamplingTask, exc: DoesNotFit) -> DispatchedSamplingTask:
    """The storable part of a request whose reply or tool results do not fit. Its episode failed and is never trained."""
    status = DispatchStatus.FAILED if dispatch.status is DispatchStatus.COMPLETED else dispatch.status
    return dispatch.model_copy(update={"response": None, "tool_calls": [], "status": status, "error": str(exc)})
