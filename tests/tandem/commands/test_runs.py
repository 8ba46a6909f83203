"""`tandem runs`, `tandem gc` and `tandem tail`: what there is, what may go, what happens."""

import asyncio
import json
import signal
import uuid
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta

import pytest
from rich.console import Console

from shared.documents.run import Admission, TrainerEnd, Worker
from shared.processes.mongod import Mongod
from shared.store import Store
from shared.store.events import Event
from shared.store.pipelines import EPOCH
from tandem.commands.tail import MOST_AT_ONCE, Tail
from tests.shared.builders import claim, import_tasks, set_settings
from tests.shared.episodes import play, whole_run
from tests.tandem.commands.commands import Command
from tests.tandem.commands.test_cli_processes import spawn

ADMISSION = Admission(groups_per_step=1, max_staleness=0, num_steps=9)
WEEK_MS = 7 * 86_400_000


@pytest.fixture
async def another(mongod: Mongod) -> AsyncIterator[Store]:
    async with Store.open(mongod.connection_string, f"test-{uuid.uuid4().hex[:12]}") as store:
        yield store
        await store.client.drop_database(store.run)


async def end(store: Store) -> None:
    generation = await store.runs.start_trainer("main", ADMISSION)
    done = TrainerEnd(trainer_generation=generation, step=9, reason="all 9 steps are taken")
    await store.runs.end_trainer("main", done)


async def make_older(store: Store, milliseconds: int = WEEK_MS) -> None:
    for name, field in (("runs", "created_at"), ("workers", "heartbeat")):
        earlier = [{"$set": {field: {"$subtract": [f"${field}", milliseconds]}}}]
        await store.database[name].update_many({}, earlier)


async def test_runs_are_listed_with_condition_age_and_size_and_other_databases_are_not(
    tandem: Command, store: Store, another: Store
) -> None:
    await end(store)
    await store.client["no-run-of-ours"]["things"].insert_one({})
    result = await asyncio.to_thread(tandem, "runs", "--json")
    await store.client.drop_database("no-run-of-ours")
    found = {row["name"]: row for row in json.loads(result.stdout)}
    assert (found[store.run]["condition"], found[another.run]["condition"]) == ("ended", "unstarted")
    assert found[store.run]["bytes"] > 10_000
    assert "no-run-of-ours" not in found


async def test_only_old_runs_that_are_over_are_deleted_and_only_when_told(
    tandem: Command, store: Store, another: Store
) -> None:
    await end(store)
    await make_older(store)
    await another.workers.heartbeat(Worker(id="w", kind="sampler", host="h", pid=1, heartbeat_s=604_800))
    await make_older(another)  # goes on: its next heartbeat is not due yet

    async def names() -> set[str]:
        return set(await store.client.list_database_names())

    listed = await asyncio.to_thread(tandem, "gc", "--older_than_days", "6")
    assert store.run in listed.stdout
    assert "may be deleted with --yes" in listed.stdout
    assert another.run not in listed.stdout
    assert store.run in await names()
    young = await asyncio.to_thread(tandem, "gc", store.run, "--older_than_days", "8", "--yes")
    assert (young.exit_code, "its last sign of life was 7 d ago" in young.output) == (1, True)
    live = await asyncio.to_thread(tandem, "gc", another.run, "absent", "--older_than_days", "0", "--yes")
    assert (live.exit_code, f"kept: {another.run}: it is running" in live.output) == (1, True)
    assert "kept: absent: no such run" in live.output
    assert {store.run, another.run} <= await names()
    gone = await asyncio.to_thread(tandem, "gc", store.run, "--older_than_days", "6", "--yes")
    assert (gone.exit_code, "1 runs" in gone.stdout) == (0, True)
    assert await names() >= {another.run}
    assert store.run not in await names()


@pytest.mark.parametrize("of", ["a process", "a collection", "a version", "a time", "a run that needs it"])
async def test_what_lives_or_is_not_tandems_alone_is_kept_with_the_reason(
    tandem: Command, store: Store, another: Store, of: str
) -> None:
    """A crashed trainer's sampler waits for its next start; a notebook keeps its notes in the run's database."""
    await end(store)
    runs = store.database["runs"]
    if of == "a process":
        await store.workers.heartbeat(Worker(id="s", kind="sampler", host="h", pid=1))
    elif of == "a collection":
        await store.database["my notes"].insert_one({"read": "this one"})
    elif of == "a version":
        await runs.update_one({}, {"$inc": {"schema_version": 1}})
    elif of == "a run that needs it":
        await set_settings(another, "trainer-main", {"data_run": store.run})
    else:
        await runs.update_one({}, {"$set": {"created_at": "long ago"}})
    result = await asyncio.to_thread(tandem, "gc", store.run, "--older_than_days", "0", "--yes")
    why = {
        "a process": "1 of its processes are alive",
        "a collection": "its database has collections that are not Tandem's: my notes",
        "a version": "it is unknown",
        "a time": "it is unknown",
        "a run that needs it": f"run {another.run}, which is not done, trains on its data",
    }
    assert (result.exit_code, f"kept: {store.run}: {why[of]}" in result.output) == (1, True), result.output
    assert "0 runs" in result.stdout
    assert store.run in await store.client.list_database_names()


async def test_a_run_of_imported_tasks_alone_may_go_when_its_last_import_is_old(tandem: Command, store: Store) -> None:
    await import_tasks(store, 1)
    await make_older(store)
    young = await asyncio.to_thread(tandem, "gc", "--older_than_days", "6")
    assert store.run not in young.stdout, "tasks were imported just now"
    await store.database["tasks"].update_many({}, [{"$set": {"created_at": {"$subtract": ["$created_at", WEEK_MS]}}}])
    old = await asyncio.to_thread(tandem, "gc", "--older_than_days", "6")
    assert store.run in old.stdout


async def test_tail_prints_each_event_once_in_order_and_goes_on_where_it_ended(
    mongod: Mongod, tandem: Command, store: Store
) -> None:
    await whole_run(store)
    ended = await asyncio.to_thread(tandem, "tail", store.run, "--no-follow", "--json", "--since", "2020-01-01")
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    kinds = [event["kind"] for event in events]
    assert {kind: kinds.count(kind) for kind in kinds} == {"episode": 4, "group": 2, "step": 1}
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
    await store.workers.heartbeat(Worker(id="other", kind="sampler", host="h", pid=2, heartbeat_s=3600))
    arguments = ("tail", store.run, "--last", "1", "--json", "--interval_s", "0.1")
    with spawn(*arguments, uri=mongod.connection_string) as child:
        assert child.stdout is not None
        assert json.loads(await asyncio.to_thread(child.stdout.readline)) == events[-1]
        await import_tasks(store, 3, num_generations=1)  # t0 and t1 are there; t2 is new
        held = await claim(store)
        await play(store, held, 0.5)
        told = json.loads(await asyncio.to_thread(child.stdout.readline))
        assert (told["id"], told["told"].split("  ")[1]) == (held.record_id, "score 0.5")
        await store.workers.heartbeat(Worker(id="sampler:h:1", kind="sampler", host="h", pid=1))
        joined = json.loads(await asyncio.to_thread(child.stdout.readline))
        assert (joined["kind"], joined["told"]) == ("process", "has joined")
        await store.workers.leave("sampler:h:1", "ValueError: no")
        left = json.loads(await asyncio.to_thread(child.stdout.readline))
        assert left["told"] == "failed: ValueError: no"
        child.send_signal(signal.SIGINT)
        out, err = await asyncio.to_thread(child.communicate, timeout=60)
    assert (child.returncode, err) == (130, "tandem: interrupted\n")
    assert out == ""


async def test_tail_pages_through_more_events_than_one_query_returns(
    tandem: Command, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.commands.tail.MOST_AT_ONCE", 3)
    await whole_run(store, tasks=5)
    await store.database["records"].update_many({}, [{"$set": {"finished_at": {"$add": ["$created_at", 1]}}}])
    since = ("--since", "2020-01-01", "--only", "episode")
    told = await asyncio.to_thread(tandem, "tail", store.run, "--no-follow", "--json", *since)
    assert len({json.loads(line)["id"] for line in told.stdout.splitlines()}) == 10
    assert len(told.stdout.splitlines()) == 10


async def test_tail_pages_through_events_of_one_moment(
    tandem: Command, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update of many documents gives all of them one time."""
    monkeypatch.setattr("tandem.commands.tail.MOST_AT_ONCE", 3)
    await whole_run(store, tasks=5)
    await store.database["records"].update_many({}, [{"$set": {"finished_at": "$$NOW"}}])
    since = ("--since", "2020-01-01", "--only", "episode")
    command = asyncio.to_thread(tandem, "tail", store.run, "--no-follow", "--json", *since)
    told = [json.loads(line)["id"] for line in (await asyncio.wait_for(command, 120)).stdout.splitlines()]
    assert (len(told), len(set(told))) == (10, 10)


async def end_episodes(store: Store, names: Iterable[str]) -> None:
    """They end now, all at the same moment."""
    now = await store.questions.server_time()
    await store.database["records"].insert_many([{"_id": name, "task": name, "finished_at": now} for name in names])


def an_episode_tail(store: Store) -> Tail:
    return Tail(store, Console(), ["episode"], None, as_json=True)


async def test_tail_loses_none_of_more_episodes_than_a_query_returns_that_end_between_two_looks(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    await end_episodes(store, (f"before{n}" for n in range(1_200)))
    tail = an_episode_tail(store)
    await tail.begin(last=1)
    assert len(capsys.readouterr().out.splitlines()) == 1, "the others ended before, however many they are"
    for round_ in range(2):
        names = [f"r{round_}n{n}" for n in range(1_700)]
        await end_episodes(store, names[:900])
        await end_episodes(store, names[900:])
        while await tail.poll():
            pass
        printed = [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()]
        assert (len(printed), set(printed)) == (1_700, set(names))


async def test_tail_prints_each_of_very_many_episodes_once_and_forgets_those_of_long_ago(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.commands.tail.MOST_AT_ONCE", 5_000)
    monkeypatch.setattr(
        "tandem.commands.tail.LOOK_BACK", timedelta(minutes=10)
    )  # they end within it, on a slow machine too
    tail = an_episode_tail(store)
    await tail.begin(last=0)
    names = [f"e{n}" for n in range(21_000)]
    await end_episodes(store, names)
    for _ in range(2):
        while await tail.poll():
            pass
    printed = [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()]
    assert (len(printed), set(printed)) == (len(names), set(names))
    later = (await store.questions.server_time() + timedelta(hours=1)).replace(microsecond=0)
    await store.database["records"].insert_one({"_id": "later", "task": "t", "finished_at": later})
    while await tail.poll():
        pass
    assert list(tail._seen["episode"]) == [("later", later)]


async def test_tail_does_not_read_a_full_page_again_and_again(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    tail = an_episode_tail(store)
    await tail.begin(last=0)
    await store.database["records"].insert_many(
        [
            {"_id": f"e{n}", "task": f"t{n}", "finished_at": EPOCH + timedelta(days=40_000, hours=n)}
            for n in range(MOST_AT_ONCE)
        ]
    )
    assert [await tail.poll() for _ in range(4)] == [True, False, False, False]
    assert len(capsys.readouterr().out.splitlines()) == MOST_AT_ONCE


async def test_tail_prints_an_episode_that_ends_while_it_begins(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await end_episodes(store, ["first"])
    read = store.events.last

    async def last_and_then_one_more(kind: str, limit: int) -> list[Event]:
        found = await read(kind, limit)
        await end_episodes(store, ["second"])
        return found

    monkeypatch.setattr(store.events, "last", last_and_then_one_more)
    tail = an_episode_tail(store)
    await tail.begin(last=10)
    while await tail.poll():
        pass
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == ["first", "second"]


async def test_tail_since_a_time_prints_nothing_of_before(tandem: Command, store: Store) -> None:
    await whole_run(store)
    newest = await store.database["records"].find_one(sort=[("finished_at", -1), ("_id", -1)])
    assert newest is not None
    earlier = [{"$set": {"finished_at": {"$subtract": ["$finished_at", 2_000]}}}]
    await store.database["records"].update_many({"_id": {"$ne": newest["_id"]}}, earlier)
    since = ("--since", newest["finished_at"].isoformat(), "--only", "episode")
    told = await asyncio.to_thread(tandem, "tail", store.run, "--no-follow", "--json", *since)
    assert [json.loads(line)["id"] for line in told.stdout.splitlines()] == [newest["_id"]]


async def test_what_tail_reads_is_found_by_an_index(store: Store) -> None:
    await whole_run(store)
    for collection, field in (("records", "finished_at"), ("tasks", "settled_at"), ("trained_steps", "created_at")):
        now = await store.questions.server_time()
        asked = store.database[collection].find({field: {"$gt": now}}).sort([(field, 1), ("_id", 1)])
        stats = (await asked.explain())["executionStats"]
        assert (stats["totalDocsExamined"], stats["nReturned"]) == (0, 0)
