"""Three real nodes: step-downs, kill -9 of the primary, no majority, a rollback; and weaker connection strings."""

import asyncio
import contextlib
import os
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pymongo
import pytest
from pymongo.errors import ConnectionFailure, WriteConcernError

from sampler.core.settlement.current_rules import CurrentRules
from sampler.settings import SamplerConfig
from shared.documents.run import Admission
from shared.errors import ConfigError, LeaseLost, StoreUnavailable
from shared.store import Store, primary
from tests.sampler.episodes import MODEL
from tests.shared.builders import import_tasks, make_task
from tests.shared.replica_faults import problems, work_through
from tests.shared.replica_set import ReplicaSet

pytestmark = pytest.mark.slow
PATIENCE_S = 240.0


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    with ReplicaSet(tmp_path_factory.mktemp("replica-set")) as servers:
        yield servers


@pytest.fixture
async def store(servers: ReplicaSet) -> AsyncIterator[Store]:
    servers.whole()
    async with Store.open(servers.connection_string, f"test-{uuid.uuid4().hex[:12]}") as store:
        yield store


async def blocking(work: object, *args: object) -> None:
    assert callable(work)
    await asyncio.to_thread(work, *args)


@pytest.mark.parametrize("fault", ["step down", "kill -9", "no majority"])
async def test_the_work_continues_through(servers: ReplicaSet, store: Store, fault: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await work_through(store, range(2))
        working = asyncio.create_task(work_through(store, range(2, 12)))
        if fault == "step down":
            await blocking(servers.step_down)
        elif fault == "kill -9":
            await blocking(servers.kill, await asyncio.to_thread(servers.primary))
        else:
            lost = await asyncio.to_thread(servers.secondaries)
            for n in lost:
                servers.stop(n)
            await blocking(servers.until, lambda: "PRIMARY" not in servers.states(), "end of the primary")
            assert not working.done()
            for n in lost:
                servers.resume(n)
        await working
        await blocking(servers.whole)
        assert await problems(store, 12) == []


@pytest.mark.parametrize("fault", ["none", "step down"])
async def test_of_two_samplers_that_start_a_run_at_once_one_declares_the_rules_and_the_other_is_refused(
    servers: ReplicaSet, store: Store, fault: str
) -> None:
    def rules(policy: str, worker: str, **given: object) -> CurrentRules:
        needed = {"run": store.run, "db_connection_string": "x", "model_name_or_path": MODEL, "policy": policy}
        return CurrentRules(store, SamplerConfig.from_sources({"flags": needed | given}), worker)

    async with asyncio.timeout(PATIENCE_S):
        for policy in ("p0", "p1", "p2", "p3"):
            starts = [rules(policy, f"w{n}", temperature=0.5 + n / 10).begin() for n in range(4)]
            falling = asyncio.create_task(blocking(servers.step_down if fault == "step down" else servers.whole))
            ends = await asyncio.gather(*starts, return_exceptions=True)
            await falling
            (written,) = await store.rules.all(policy)
            begun = [n for n, end in enumerate(ends) if not isinstance(end, BaseException)]
            assert [f"w{n}" for n in begun] == [written.by]
            assert written.values["temperature"] == 0.5 + begun[0] / 10
            refused = [str(end) for end in ends if isinstance(end, ConfigError)]
            assert len(refused) == 3
            assert all(f"expected {written.values['temperature']}, as the run has it" in text for text in refused)
            assert (await rules(policy, "later").begin()).sampling.temperature == written.values["temperature"]


async def test_an_import_that_a_rollback_undid_was_not_acknowledged_and_is_made_again(
    servers: ReplicaSet, store: Store
) -> None:
    """The primary writes it alone, and dies; the others elect another one, and its return undoes what it had alone."""
    await import_tasks(store, 1)
    primary = await asyncio.to_thread(servers.primary)
    others = [n for n in range(3) if n != primary]
    uri = servers.members[primary].connection_string
    for n in others:
        await blocking(servers.kill, n)
    importing = asyncio.create_task(store.tasks.insert_new([make_task(seq) for seq in range(1, 5)]))
    with pymongo.MongoClient(uri, serverSelectionTimeoutMS=60_000) as alone:
        tasks = alone[store.run].tasks

        def written_there() -> bool:
            return tasks.count_documents({}) == 5

        await blocking(servers.until, written_there, "import on the primary")
    assert not importing.done(), "no majority has it"
    await blocking(servers.kill, primary)
    for n in others:
        await blocking(servers.restart, n)
    new_primary = await asyncio.to_thread(servers.primary)
    assert new_primary in others
    async with asyncio.timeout(PATIENCE_S):
        assert await importing == 4
    await blocking(servers.restart, primary)
    await blocking(servers.whole)
    assert [d["tid"] async for d in store.database["tasks"].find().sort("seq", 1)] == [f"t{n}" for n in range(5)]


async def start_trainer(store: Store) -> int:
    """As `trainer.run.takeover` does: it looks again where an election took its own start's answer."""
    while True:
        with contextlib.suppress(LeaseLost):
            return await store.runs.start_trainer("main", Admission(groups_per_step=1, max_staleness=0))


WEAK = "w=0&journal=false&readConcernLevel=local&readPreference=secondaryPreferred&readPreferenceTags=member:{member}"


@pytest.mark.thorough
async def test_a_connection_string_cannot_make_reads_stale_or_writes_uncertain(
    servers: ReplicaSet, store: Store
) -> None:
    """The string prefers reads from a member that is behind the primary."""
    if (lagging := await member_behind(servers, store)) is None:
        pytest.skip("the fail point held back no member")
    try:
        async with Store.open(
            f"{servers.connection_string}&{WEAK.format(member=lagging)}", store.run
        ) as asked_for_less:
            for _ in range(5):
                generation = await start_trainer(store)
                assert await asked_for_less.runs.is_current_trainer("main", generation)
                assert not await asked_for_less.runs.is_current_trainer("main", generation - 1)
            assert asked_for_less.database.write_concern.document == {"w": "majority", "j": True, "wtimeout": 30_000}
    finally:
        await blocking(servers.lag, lagging, False)


async def member_behind(servers: ReplicaSet, store: Store) -> int | None:
    """A secondary that stopped applying and lacks a write that a majority has; the fail point holds from its next batch on."""
    for member in 5 * await asyncio.to_thread(servers.secondaries):
        await blocking(servers.lag, member)
        for _ in range(10):
            generation = await start_trainer(store)
            try:
                with pymongo.MongoClient[dict[str, Any]](servers.members[member].connection_string) as alone:
                    run = await asyncio.to_thread(alone[store.run].runs.find_one, {"_id": "run"})
            except ConnectionFailure:  # an election found it between two roles
                continue
            if run is None or run["trainer_generations"].get("main", 0) < generation:
                return member
        await blocking(servers.lag, member, False)
    return None


async def test_a_string_that_reaches_only_a_secondary_is_refused(servers: ReplicaSet, store: Store) -> None:
    secondary = (await asyncio.to_thread(servers.secondaries))[0]
    with pytest.raises(
        ConfigError, match="that is not its primary; expected a connection string that names every member"
    ):
        async with Store.open(servers.members[secondary].connection_string, store.run):
            pass


async def test_a_write_without_a_majority_is_not_a_success_and_its_repetition_waits(
    servers: ReplicaSet, store: Store
) -> None:
    """Both secondaries stand still: the undecorated driver says it in as many words."""
    secondaries = await asyncio.to_thread(servers.secondaries)
    for n in secondaries:
        await asyncio.to_thread(servers.lag, n)
    try:
        impatient = store.database.with_options(write_concern=pymongo.WriteConcern(w="majority", j=True, wtimeout=200))
        for _ in range(2):  # the second changes nothing, and is not acknowledged either
            with pytest.raises((WriteConcernError, ConnectionFailure)):
                await impatient["tasks"].update_one({"_id": "x"}, {"$set": {"a": 1}}, upsert=True)
        importing = asyncio.create_task(store.tasks.insert_new([make_task(seq) for seq in range(3)]))
        done, _ = await asyncio.wait([importing], timeout=2.0)
        assert not done
    finally:
        for n in secondaries:
            await asyncio.to_thread(servers.lag, n, False)
    async with asyncio.timeout(PATIENCE_S):
        assert await importing == 3


@contextlib.asynccontextmanager
async def without_a_primary(servers: ReplicaSet) -> AsyncIterator[int]:
    """Two members are killed. The one that remains."""
    first, second = (await asyncio.to_thread(servers.primary), (await asyncio.to_thread(servers.secondaries))[0])
    (remaining,) = {0, 1, 2} - {first, second}
    for n in (first, second):
        await blocking(servers.kill, n)
    try:
        await blocking(servers.until, lambda: "PRIMARY" not in servers.states(), "end of the primary")
        yield remaining
    finally:
        await blocking(servers.whole)


@pytest.mark.parametrize(
    "program",
    ["a service", *(pytest.param(one, marks=pytest.mark.thorough) for one in ("the keeper", "tandem status"))],
)
async def test_a_start_during_an_election_waits_for_its_end(
    servers: ReplicaSet, store: Store, program: str, caplog: pytest.LogCaptureFixture
) -> None:
    words = {
        "the keeper": [
            *("-m", "sampler.engine.keeper", "--run", store.run, "--model_name_or_path", str(MODEL)),
            *("--engine_url", "http://127.0.0.1:9", "--start_timeout_s", "5"),
        ],
        "tandem status": ["-m", "tandem", "status", store.run],
    }
    async with asyncio.timeout(PATIENCE_S):
        async with without_a_primary(servers):
            if program == "a service":
                opening = asyncio.create_task(opened(servers.connection_string, store.run))
                while "has no primary: waiting for one" not in caplog.text:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
                assert not opening.done()
            else:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *words[program],
                    env=os.environ | {"DB_CONNECTION_STRING": servers.connection_string},
                    stderr=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.DEVNULL,
                )
                assert process.stderr is not None
                while b"has no primary: waiting for one" not in (line := await process.stderr.readline()):
                    assert line, "it ended"
        if program == "a service":
            await opening
            return
        rest = (await process.communicate())[1]
        if program == "tandem status":
            assert process.returncode == 0
        else:
            assert b"127.0.0.1:9" in rest, "it goes on to its engine"


async def test_a_start_without_a_primary_ends_with_the_members_that_there_are(
    servers: ReplicaSet, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(primary, "PATIENCE_S", 3.0)
    async with without_a_primary(servers) as remaining:
        for string in (servers.connection_string, servers.members[remaining].connection_string):
            with pytest.raises(StoreUnavailable, match=r"has had no primary for 3 s; members: .*Secondary"):
                await opened(string, store.run, timeout_s=2.0)


async def opened(connection_string: str, run: str, **options: Any) -> None:
    async with Store.open(connection_string, run, **options):
        pass
