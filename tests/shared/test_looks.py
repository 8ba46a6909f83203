"""Polling queries read no more of a long run than of a short one."""

import asyncio

import pytest

from shared.processes.mongod import Mongod
from shared.store import Store, incomplete_groups, record_data
from tests.shared.looks import (
    COUNTS,
    OFTEN,
    Examined,
    claim_train_ungated,
    examine,
    fill,
    open_groups,
    ready_data,
)

SIZES = (200, 2_000)  # finished groups
SLACK = 4  # keys: a plan that skips along an index looks at one more for each thing that it skips to


@pytest.fixture(scope="module")
def examined(mongod: Mongod) -> dict[str, list[Examined]]:
    return asyncio.run(ask_at_both_sizes(mongod.connection_string))


async def ask_at_both_sizes(connection_string: str) -> dict[str, list[Examined]]:
    found: dict[str, list[Examined]] = {}
    for size in SIZES:
        async with Store.open(connection_string, f"looks-{size}") as store:
            await fill(store, size)
            for name, look in (OFTEN | COUNTS).items():
                found.setdefault(name, []).append(await examine(connection_string, store, look))
            await store.client.drop_database(store.run)
    return found


@pytest.mark.parametrize("name", OFTEN)
def test_a_polling_query_reads_no_more_of_a_run_that_is_ten_times_as_long(
    examined: dict[str, list[Examined]], name: str
) -> None:
    short, long = examined[name]
    assert long.keys <= short.keys + SLACK, long
    assert long.documents <= short.documents, long
    assert long.plans, "it was seen by the profiler"


@pytest.mark.parametrize("name", COUNTS)
def test_documents_are_counted_without_being_read(examined: dict[str, list[Examined]], name: str) -> None:
    for found in examined[name]:
        assert (found.documents, found.keys > 0) == (0, True), found


async def test_a_number_above_the_bound_stands_for_more_than_it_and_the_others_are_exact(store: Store) -> None:
    await open_groups(store, 8, waiting=5)
    assert await store.tasks.count_by_status() == {"train": {"running": 8, "created": 5}}
    assert await store.tasks.count_by_status(most=5) == {"train": {"running": 6, "created": 5}}
    await store.database["record_data"].insert_many([document for seq in range(4) for document in ready_data(seq)])
    assert await store.data.count_by_status(most=8) == {"ready": 8}
    assert await store.data.count_by_status(most=7) == {"ready": 8}
    assert await store.data.count_by_status(most=3) == {"ready": 4}


async def test_with_much_data_waiting_no_more_than_the_bound_is_counted(
    mongod: Mongod, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_data, "OLDEST_COUNTED", 100)
    waiting = [document for seq in range(1_000) for document in ready_data(seq)]
    await store.database["record_data"].insert_many(waiting)
    assert await store.data.count_ready_groups("main") == 50
    found = await examine(mongod.connection_string, store, lambda store: store.data.count_ready_groups("main"))
    assert (found.documents, found.keys) <= (100, 101), found


async def test_a_claim_reads_none_of_the_groups_that_are_played_elsewhere(mongod: Mongod, store: Store) -> None:
    await open_groups(store, 4_000, waiting=100)
    for look in (claim_train_ungated, claim_train_ungated):  # opens a group, then takes a slot of the open one
        read = await examine(mongod.connection_string, store, look)
        assert (read.documents, read.keys) <= (2, 8), read
    assert await store.database["tasks"].count_documents({"status": "running"}) == 4_001


async def test_a_group_that_stays_incomplete_is_not_read_by_every_query(
    mongod: Mongod, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incomplete_groups, "UNCHANGED_S", 0.0)
    halves = [next(iter(ready_data(seq))) for seq in range(500)]
    await store.database["record_data"].insert_many([*halves, *ready_data(500)])

    async def ready(store: Store) -> None:
        assert [group["seq"] for group in await store.data.ready_groups("main", 8)] == [500]

    first, second = [await examine(mongod.connection_string, store, ready) for _ in range(2)]
    assert first.documents == 502
    assert second.documents == 2, second
    monkeypatch.setattr(incomplete_groups, "REREAD_S", 0.0)
    await store.database["record_data"].insert_one([*ready_data(7)][1])
    assert [group["seq"] for group in await store.data.ready_groups("main", 8)] == [7, 500]


async def test_a_group_that_grows_is_read_by_every_query(store: Store) -> None:
    one, other = ready_data(3)
    await store.database["record_data"].insert_one(one)
    assert [await store.data.ready_groups("main", 8) for _ in range(2)] == [[], []]
    await store.database["record_data"].insert_one(other)
    assert [group["seq"] for group in await store.data.ready_groups("main", 8)] == [3]
