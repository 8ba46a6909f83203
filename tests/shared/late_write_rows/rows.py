"""What rows of late writes share. A row is a verb of the store whose write may come late, and the events after it."""

from collections.abc import Awaitable, Callable
from typing import Any

from shared.documents import Claim, Task
from shared.store import Store
from tests.shared.builders import claim, import_tasks
from tests.shared.episodes import play

Late = Callable[[Awaitable[Any]], Awaitable[Any]]
Row = Callable[[Store, Late], Awaitable[None]]
RECORD = "main:train:0:t0:0:1"
ROWS: dict[str, Row] = {}


def row(*verbs: str) -> Callable[[Row], Row]:
    def add(function: Row) -> Row:
        ROWS.update(dict.fromkeys(verbs, function))
        return function

    return add


async def completed(store: Store) -> Task:
    await import_tasks(store, 1)
    while (held := await claim(store)) is not None:
        await play(store, held, float(held.traj_id))
    task = await store.tasks.get("main:train:0:t0")
    assert task is not None
    return task


async def held(store: Store) -> Claim:
    await import_tasks(store, 1)
    found: Claim = await claim(store)
    return found
