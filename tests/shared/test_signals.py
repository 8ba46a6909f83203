"""A process that waits is notified at once, on a single server and on a replica set."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from shared.documents.run import Admission, InferenceService, TrainerEnd
from shared.documents.states import DataStatus, RunState, ServiceStatus
from shared.processes.mongod import Mongod
from shared.store import Store, signals
from shared.store.signals import CAPPED_BYTES, SIGNALS, Signal, Signals
from tests.shared.builders import claim, import_tasks, make_task
from tests.shared.replica_set import ReplicaSet

SOON_S = 1.0  # far below `signals.AWAIT_S`, in which the server answers without a signal


@pytest.fixture
async def other(mongod: Mongod, store: Store) -> AsyncIterator[Store]:
    """The same run, seen by another process."""
    async with Store.open(mongod.connection_string, store.run) as other:
        yield other


async def is_notified(signals: Signals, kind: Signal, act: Callable[[], Awaitable[object]]) -> bool:
    """Whether `act` ends a wait for `kind` that has begun."""
    await listening(signals)
    waiting = asyncio.create_task(signals.wait([kind], signals.received([kind]), SOON_S))
    await asyncio.sleep(0)
    await act()
    return await waiting


async def listening(signals: Signals) -> None:
    """Wait until all earlier signals are received. The first wait of a process ends at once."""
    while await signals.wait(tuple(Signal), signals.received(Signal), 0.2):
        pass


async def send(store: Store, *kinds: Signal) -> None:
    store.signals.send(*kinds)


async def test_a_wait_ends_with_a_signal_of_its_kinds_alone(store: Store, other: Store) -> None:
    assert await is_notified(other.signals, Signal.DATA, lambda: send(store, Signal.DATA))
    assert not await is_notified(other.signals, Signal.DATA, lambda: send(store, Signal.TASKS, Signal.RUN))
    assert await is_notified(store.signals, Signal.DATA, lambda: send(store, Signal.DATA))  # of its own process


async def test_a_signal_before_the_wait_is_received(store: Store, other: Store) -> None:
    await listening(other.signals)
    received = other.signals.received([Signal.DATA])
    await send(store, Signal.DATA)
    await asyncio.sleep(0.3)  # no wait is in progress
    assert await other.signals.wait([Signal.DATA], received, SOON_S)


async def test_a_wait_without_a_signal_costs_one_command_in_its_await_time(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "AWAIT_S", 2.0)
    await listening(other.signals)

    async def commands() -> int:
        status = await store.client.admin.command("serverStatus")
        return int(status["opcounters"]["getmore"])

    before, began = await commands(), time.monotonic()
    assert not await other.signals.wait([Signal.DATA], other.signals.received([Signal.DATA]), 3.0)
    assert await commands() - before <= 2 + (time.monotonic() - began - 3.0) / 2.0


async def test_signals_in_quick_succession_are_merged(store: Store) -> None:
    for _ in range(100):
        await send(store, Signal.DATA)
        await asyncio.sleep(0.001)
    await store.signals.close()
    assert await store.database[SIGNALS].count_documents({"kinds": "data"}) < 20


async def test_a_closing_store_sends_its_pending_signals(mongod: Mongod, store: Store) -> None:
    async with Store.open(mongod.connection_string, store.run) as other:
        await send(other, Signal.RUN)
    assert await store.database[SIGNALS].count_documents({"kinds": "run"}) == 1


async def test_a_collection_made_by_an_insertion_is_capped_later(store: Store, other: Store) -> None:
    await store.database.drop_collection(SIGNALS)
    await store.database[SIGNALS].insert_one({"kinds": ["data"]})  # a process that believes that it exists
    assert not (await store.database[SIGNALS].options()).get("capped")
    assert await is_notified(other.signals, Signal.DATA, lambda: send(store, Signal.DATA))
    assert (await store.database[SIGNALS].options())["capped"]


async def test_overwritten_and_malformed_signals_do_not_end_the_listener(store: Store, other: Store) -> None:
    await listening(other.signals)
    junk: list[dict[str, Any]] = [{}, {"kinds": None}, {"kinds": 7}, {"kinds": ["later"]}, {"kinds": {"a": 1}}]
    await store.database[SIGNALS].insert_many(junk)
    for _ in range(5):  # more than the collection holds
        await store.database[SIGNALS].insert_many([{"kinds": ["tasks"]} for _ in range(1000)])
    assert await is_notified(other.signals, Signal.RUN, lambda: send(store, Signal.RUN))


async def test_an_empty_collection_is_no_busy_loop(store: Store) -> None:
    """A process was killed between the creation and the first signal."""
    await store.database.create_collection(SIGNALS, capped=True, size=CAPPED_BYTES)
    await listening(store.signals)
    before = await store.client.admin.command("serverStatus")
    assert not await store.signals.wait([Signal.DATA], store.signals.received([Signal.DATA]), SOON_S)
    after = await store.client.admin.command("serverStatus")
    assert after["opcounters"]["query"] - before["opcounters"]["query"] < 5


async def test_after_the_database_was_dropped_signals_come_again(store: Store, other: Store) -> None:
    await listening(other.signals)
    await store.client.drop_database(store.run)
    assert await asyncio.wait_for(reached(other, store), 30)  # when the server answers the cursor that waits


async def test_signals_come_again_after_a_restart_of_the_database(tmp_path: Any) -> None:
    with Mongod(tmp_path / "mongod") as server:
        async with Store.open(server.connection_string, "again") as store:
            await listening(store.signals)
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            assert await asyncio.wait_for(reached(store, store), 30)


async def reached(store: Store, by: Store) -> bool:
    while not await is_notified(store.signals, Signal.DATA, lambda: send(by, Signal.DATA)):
        pass
    return True


@pytest.mark.slow
async def test_signals_of_a_replica_set_survive_its_election(servers: ReplicaSet) -> None:
    servers.whole()
    run = f"test-{uuid.uuid4().hex[:12]}"
    async with Store.open(servers.connection_string, run) as one, Store.open(servers.connection_string, run) as two:
        assert await is_notified(two.signals, Signal.DATA, lambda: send(one, Signal.DATA))
        await asyncio.to_thread(servers.step_down)
        assert await asyncio.wait_for(reached(two, one), 60)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    with ReplicaSet(tmp_path_factory.mktemp("signals")) as servers:
        yield servers


# ---------------------------------------------------------------------- the signals of verbs


def service(version: int = 0, status: ServiceStatus = ServiceStatus.UP) -> InferenceService:
    return InferenceService(id="e", url="e", policy="main", version=version, status=status)


async def completed(store: Store) -> Any:
    await import_tasks(store, 1)
    return await claim(store)


async def test_each_verb_sends_its_signal(store: Store, other: Store) -> None:
    held = await completed(store)

    async def task_is_settled() -> None:
        await store.tasks.finish_settlement(held.task, "none", abandoned=True)

    verbs: list[tuple[str, Signal, Callable[[], Awaitable[object]]]] = [
        ("import", Signal.TASKS, lambda: store.tasks.insert_new([make_task(7)])),
        ("a slot is given back", Signal.TASKS, lambda: store.tasks.release_slot(held)),
        ("a group is settled", Signal.DATA, task_is_settled),
        ("data is set aside", Signal.DATA, lambda: store.data.set_aside(["r"], DataStatus.DROPPED, "why")),
        ("a round is withdrawn", Signal.DATA, lambda: store.evaluation.withdraw("main", [1])),
        ("weights", Signal.VERSIONS, lambda: store.versions.ensure_first("main", "/w", {})),
        ("weights are withdrawn", Signal.VERSIONS, lambda: store.versions.withdraw_after("main", 0, 2)),
        ("an engine", Signal.SERVICES, lambda: store.services.heartbeat(service())),
        ("its version", Signal.SERVICES, lambda: store.services.heartbeat(service(1))),
        ("its status", Signal.SERVICES, lambda: store.services.heartbeat(service(1, ServiceStatus.UPDATING))),
        ("its keeper's end", Signal.SERVICES, lambda: store.services.set_status("e", ServiceStatus.DOWN)),
        ("its removal", Signal.SERVICES, lambda: store.services.remove("e")),
        ("a pause", Signal.RUN, lambda: store.runs.set_state(RunState.PAUSED)),
        (
            "a trainer",
            Signal.RUN,
            lambda: store.runs.start_trainer("main", Admission(groups_per_step=1, max_staleness=0)),
        ),
        (
            "its end",
            Signal.RUN,
            lambda: store.runs.end_trainer("main", TrainerEnd(trainer_generation=1, step=1, reason="all")),
        ),
    ]
    silent = [name for name, kind, act in verbs if not await is_notified(other.signals, kind, act)]
    assert silent == []


async def test_a_heartbeat_without_a_change_sends_no_signal(store: Store, other: Store) -> None:
    await store.services.heartbeat(service())
    assert not await is_notified(other.signals, Signal.SERVICES, lambda: store.services.heartbeat(service()))
