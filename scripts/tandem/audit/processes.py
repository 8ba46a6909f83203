"""Examines batches of groups ahead of the one whose report is read: in this process, or in several for a large run.

    batches of ids ─▶ examined in any order, a few at once ─▶ reports in the order of the ids

The processes only read, as this one does, and end with it: also when it is killed.
"""

import asyncio
import gc
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from pymongo.errors import PyMongoError

from shared.errors import TandemError
from shared.store import Store
from tandem.audit.groups import audit_groups
from tandem.audit.report import AuditReport
from tandem.audit.scope import AuditScope

AHEAD = 2  # batches of each process: one is read while another is checked
LARGE_RUN = 3_000  # tasks, from which the second that processes take to start pays
Examine = Callable[[Sequence[Any]], Awaitable[AuditReport]]


class ExaminationFailed(TandemError):
    """A process could not read a batch of groups."""


@dataclass(frozen=True, slots=True)
class Processes:
    """`number` of them examine a run of at least `least_tasks` at `connection_string`."""

    connection_string: str
    number: int
    least_tasks: int = LARGE_RUN

    @classmethod
    def of_machine(cls, connection_string: str) -> "Processes":
        return cls(connection_string, len(os.sched_getaffinity(0)))


def collect_rarely() -> None:
    """For a process of its own: the collector of cycles, which finds none among documents, took a third of an audit's time."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


async def examined(
    store: Store, batches: AsyncIterator[Sequence[Any]], scope: AuditScope, processes: Processes | None
) -> AsyncGenerator[tuple[Sequence[Any], AuditReport], None]:
    """(ids of groups, their report) of every batch, in order."""
    if processes is not None and (processes.number < 2 or await store.stored.count_tasks() < processes.least_tasks):
        processes = None
    number = 1 if processes is None else processes.number
    with _examiner(store, scope, processes) as examine:
        begun: deque[tuple[Sequence[Any], asyncio.Future[AuditReport]]] = deque()
        try:
            async for ids in batches:
                begun.append((ids, asyncio.ensure_future(examine(ids))))
                if len(begun) > AHEAD * number:
                    oldest, report = begun.popleft()
                    yield oldest, await report
            while begun:
                oldest, report = begun.popleft()
                yield oldest, await report
        finally:
            for _, report in begun:
                report.cancel()
            await asyncio.gather(*(report for _, report in begun), return_exceptions=True)


@contextmanager
def _examiner(store: Store, scope: AuditScope, processes: Processes | None) -> Iterator[Examine]:
    if processes is None:
        yield lambda ids: audit_groups(store, ids, scope)
        return
    pool = ProcessPoolExecutor(
        processes.number,
        multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(processes.connection_string, store.run, scope),
    )

    async def examine(ids: Sequence[Any]) -> AuditReport:
        return await asyncio.get_running_loop().run_in_executor(pool, _examine, ids)

    try:
        yield examine
    finally:
        pool.shutdown(cancel_futures=True)  # a batch that is being examined is finished: well under a second


# ---------------------------------------------------------------------- in a process of the pool


class Examiner:
    """Opens the store at the first batch, so that an error there is that batch's, and keeps it: the process ends with it."""

    def __init__(self, connection_string: str, run: str, scope: AuditScope) -> None:
        self._connection_string, self._run, self._scope = connection_string, run, scope
        self._runner, self._opened = asyncio.Runner(), AsyncExitStack()
        self._store: Store | None = None

    def examine(self, ids: Sequence[Any]) -> AuditReport:
        return self._runner.run(self._examine(ids))

    async def _examine(self, ids: Sequence[Any]) -> AuditReport:
        if self._store is None:
            opening = Store.open(self._connection_string, self._run, read_only=True)
            self._store = await self._opened.enter_async_context(opening)
        return await audit_groups(self._store, ids, self._scope)


EXAMINER: list[Examiner] = []  # of this process


def _begin(connection_string: str, run: str, scope: AuditScope) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    collect_rarely()
    EXAMINER.append(Examiner(connection_string, run, scope))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a process of a pool has a parent"
    parent.join()
    os._exit(1)


def _examine(ids: Sequence[Any]) -> AuditReport:
    """An error becomes its text: not every exception can be sent between processes."""
    try:
        return EXAMINER[0].examine(ids)
    except (TandemError, PyMongoError) as exc:
        raise ExaminationFailed(str(exc)) from None
