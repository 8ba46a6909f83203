"""Who waits is told at once, on a single server and on a replica set, and looks by itself where a signal is lost."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from sampler.core.service.loops import wait_for
from shared.documents.run import Admission, InferenceService, TrainerEnd
from shared.documents.states import DataStatus, RunState, ServiceStatus
from shared.processes.mongod import Mongod
from shared.store import Store
from shared.store.signals import AWAIT_S, LONGEST_S, SIGNALS, Looks, Signal, Signals
from tests.shared.builders import import_tasks, make_task
from tests.shared.replica_set import ReplicaSet

SOON_S = 2.0  # far below what the server or a waiter takes without a signal


@pytest.fixture
async def other(mongod: Mongod, store: Store) -> AsyncIterator[Store]:
    """The same run, seen by another process."""
    async with Store.open(mongod.connection_string, store.run) as other:
        yield other


async def told(signals: Signals, kind: Signal, act: Callable[[], Awaitable[object]]) -> bool:
    """Whether `act` wakes who already waits for `kind`."""
    await listening(signals)
    waiting = asyncio.create_task(signals.wait([kind], signals.mark([kind]), SOON_S))
    await asyncio.sleep(0)
    await act()
    return await waiting


async def listening(signals: Signals) -> None:
    """Behind whatever was sent before: the first wait ends at once."""
    while await signals.wait(tuple(Signal), signals.mark(Signal), 0.2):
        pass


async def send(store: Store, *kinds: Signal) -> None:
    store.signals.send(*kinds)


async def test_a_waiter_is_told_of_its_kinds_alone(store: Store, other: Store) -> None:
    assert await told(other.signals, Signal.DATA, lambda: send(store, Signal.DATA))
    assert not await told(other.signals, Signal.DATA, lambda: send(store, Signal.TASKS, Signal.RUN))
    assert await told(store.signals, Signal.DATA, lambda: send(store, Signal.DATA))  # of its own process


async def test_a_signal_between_the_look_and_the_wait_is_not_lost(store: Store, other: Store) -> None:
    await listening(other.signals)
    mark = other.signals.mark([Signal.DATA])
    await send(store, Signal.DATA)
    await asyncio.sleep(0.3)  # nobody waits meanwhile
    assert await other.signals.wait([Signal.DATA], mark, SOON_S)


async def test_a_wait_ends_in_time_and_costs_one_command_in_five_seconds(store: Store, other: Store) -> None:
    await listening(other.signals)

    async def commands() -> int:
        status = await store.client.admin.command("serverStatus")
        return int(status["opcounters"]["getmore"])

    before, began = await commands(), time.monotonic()
    assert not await other.signals.wait([Signal.DATA], other.signals.mark([Signal.DATA]), AWAIT_S + 1)
    assert time.monotonic() - began < AWAIT_S + 2
    assert await commands() - before <= 2


async def test_many_signals_of_a_process_are_few(store: Store) -> None:
    for _ in range(100):
        await send(store, Signal.DATA)
        await asyncio.sleep(0.001)
    await store.signals.close()
    assert await store.database[SIGNALS].count_documents({"kinds": "data"}) < 20


async def test_a_store_that_closes_sends_what_it_has_to_say(mongod: Mongod, store: Store) -> None:
    async with Store.open(mongod.connection_string, store.run) as other:
        await send(other, Signal.RUN)
    assert await store.database[SIGNALS].count_documents({"kinds": "run"}) == 1


async def test_the_collection_is_bounded_whoever_made_it(store: Store, other: Store) -> None:
    await store.database.drop_collection(SIGNALS)
    await store.database[SIGNALS].insert_one({"kinds": ["data"]})  # a process that believes that it exists
    assert not (await store.database[SIGNALS].options()).get("capped")
    assert await told(other.signals, Signal.DATA, lambda: send(store, Signal.DATA))
    assert (await store.database[SIGNALS].options())["capped"]


async def test_a_waiter_that_is_overtaken_or_meets_what_is_no_signal_goes_on(store: Store, other: Store) -> None:
    await listening(other.signals)
    junk: list[dict[str, Any]] = [{}, {"kinds": None}, {"kinds": 7}, {"kinds": ["later"]}, {"kinds": {"a": 1}}]
    await store.database[SIGNALS].insert_many(junk)
    for _ in range(5):  # more than the collection holds
        await store.database[SIGNALS].insert_many([{"kinds": ["tasks"]} for _ in range(1000)])
    assert await told(other.signals, Signal.RUN, lambda: send(store, Signal.RUN))


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
    while not await told(store.signals, Signal.DATA, lambda: send(by, Signal.DATA)):
        pass
    return True


@pytest.mark.slow
async def test_signals_of_a_replica_set_survive_its_election(servers: ReplicaSet) -> None:
    servers.whole()
    run = f"test-{uuid.uuid4().hex[:12]}"
    async with Store.open(servers.connection_string, run) as one, Store.open(servers.connection_string, run) as two:
        assert await told(two.signals, Signal.DATA, lambda: send(one, Signal.DATA))
        await asyncio.to_thread(servers.step_down)
        assert await asyncio.wait_for(reached(two, one), 60)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    with ReplicaSet(tmp_path_factory.mktemp("signals")) as servers:
        yield servers


# ---------------------------------------------------------------------- which verb tells what


def service(version: int = 0, status: ServiceStatus = ServiceStatus.UP) -> InferenceService:
    return InferenceService(id="e", url="e", policy="main", version=version, status=status)


async def completed(store: Store) -> Any:
    await import_tasks(store, 1)
    claim = await store.tasks.claim_slot("w", policy="main", split="train", lease_s=60, seq_limit=None, max_failures=3)
    assert claim is not None
    return claim


async def test_each_verb_tells_who_may_wait_for_it(store: Store, other: Store) -> None:
    claim = await completed(store)

    async def task_is_settled() -> None:
        await store.tasks.finish_settlement(claim.task, "none", abandoned=True)

    tellers: list[tuple[str, Signal, Callable[[], Awaitable[object]]]] = [
        ("import", Signal.TASKS, lambda: store.tasks.insert_new([make_task(7)])),
        ("a slot is given back", Signal.TASKS, lambda: store.tasks.release_slot(claim)),
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
    silent = [name for name, kind, act in tellers if not await told(other.signals, kind, act)]
    assert silent == []


async def test_a_heartbeat_that_says_nothing_new_tells_nobody(store: Store, other: Store) -> None:
    await store.services.heartbeat(service())
    assert not await told(other.signals, Signal.SERVICES, lambda: store.services.heartbeat(service()))


# ---------------------------------------------------------------------- looks


class Silent(Signals):
    """Without a database: `ring` is a signal."""

    def __init__(self) -> None:
        self.count = 0
        self.rung = asyncio.Event()

    def mark(self, kinds: Any) -> int:
        return self.count

    async def wait(self, kinds: Any, mark: int, timeout_s: float) -> bool:
        if self.count == mark:
            self.rung.clear()
            await wait_for(self.rung, timeout_s)
        return self.count != mark

    def ring(self) -> None:
        self.count += 1
        self.rung.set()


async def pauses(looks: Looks, count: int, **options: Any) -> list[float]:
    lengths = []
    for _ in range(count):
        began = time.monotonic()
        await looks.pause(**options)
        lengths.append(time.monotonic() - began)
    return lengths


async def test_without_signals_looks_become_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.store.signals.LONGEST_S", 0.2)
    found = await pauses(Looks(Silent(), [Signal.DATA], 0.02), 6)
    assert [round(length, 1) for length in found[3:]] == [0.2, 0.2, 0.2]
    assert found[0] < found[1] < found[2] < found[3]


async def test_after_a_signal_looks_are_frequent_again_but_not_more_than_the_gap_allows() -> None:
    signals = Silent()
    looks = Looks(signals, [Signal.DATA], 0.1)
    await pauses(looks, 3)  # 0.1, 0.2, 0.4
    signals.ring()
    began = time.monotonic()
    await looks.pause()
    assert 0.04 < time.monotonic() - began < 0.15  # a look was a moment ago
    signals.ring()
    assert (await pauses(looks, 2))[1] < 0.15  # without one, after the gap
    await asyncio.sleep(0.15)
    signals.ring()
    assert (await pauses(looks, 1))[0] < 0.05  # at once: the last look is long ago


async def test_a_pause_ends_at_the_latest_when_it_is_told_to() -> None:
    looks = Looks(Silent(), [Signal.DATA], 0.02)
    await pauses(looks, 4)
    assert max(await pauses(looks, 3, at_most_s=0.05)) < 0.12
    ends = time.monotonic() + 0.3
    await pauses(looks, 1, until=lambda: time.monotonic() > ends)
    assert time.monotonic() - ends < 0.1
    assert LONGEST_S > 1
