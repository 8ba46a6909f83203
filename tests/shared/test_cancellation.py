"""A cancellation that arrives together with MongoDB's answer is not lost: over bare cursors and commands of any kind."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pymongo.network_layer import PyMongoProtocol

from shared.store import Store
from shared.store.cancellation import wait_for

DOCUMENTS = 400


async def over_a_cursor(store: Store) -> int:
    n = 0
    async for _ in store.database["numbers"].find({}, {"_id": 1}).batch_size(2):
        n += 1
    return n


async def one_by_one(store: Store) -> int:
    for n in range(DOCUMENTS):
        await store.database["numbers"].find_one({"_id": n})
    return DOCUMENTS


async def aggregated(store: Store) -> int:
    return sum([1 async for _ in await store.database["numbers"].aggregate([{"$match": {}}], batchSize=2)])


async def counted(store: Store) -> int:
    for _ in range(DOCUMENTS):
        await store.database["numbers"].count_documents({"_id": 3})
    return DOCUMENTS


@pytest.mark.parametrize("work", [over_a_cursor, one_by_one, aggregated, counted])
async def test_a_cancellation_that_arrives_with_the_answer_ends_the_work(
    store: Store, work: Callable[[Store], Awaitable[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancels in the step of the event loop in which the answer is complete: the future that PyMongo waits for is done, the task
    has not gone on."""
    await store.database["numbers"].insert_many([{"_id": n} for n in range(DOCUMENTS)])
    lost, received = 0, PyMongoProtocol.buffer_updated
    for at in range(5, 25):
        task = asyncio.ensure_future(work(store))
        answers = 0

        def answered(protocol: Any, *arguments: Any, task: Any = task, at: int = at) -> None:
            nonlocal answers
            received(protocol, *arguments)
            answers += 1
            if answers == at:
                task.cancel()

        with monkeypatch.context() as patched:
            patched.setattr(PyMongoProtocol, "buffer_updated", answered)
            try:
                await task
                lost += 1
            except asyncio.CancelledError:
                pass
    assert lost == 0


async def test_a_time_limit_around_a_cursor_ends_it(store: Store) -> None:
    await store.database["numbers"].insert_many([{"_id": n} for n in range(DOCUMENTS)])

    async def without_end() -> None:
        async with asyncio.timeout(0.001):
            while True:
                await over_a_cursor(store)

    with pytest.raises(TimeoutError):
        await without_end()


async def test_the_wait_is_that_of_a_newer_python() -> None:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    done.set_result(3)
    assert await wait_for(done, 0) == 3
    assert await wait_for(done, None) == 3
    with pytest.raises(TimeoutError):
        await wait_for(asyncio.get_running_loop().create_future(), 0)
    with pytest.raises(TimeoutError):
        await wait_for(asyncio.get_running_loop().create_future(), 0.01)
