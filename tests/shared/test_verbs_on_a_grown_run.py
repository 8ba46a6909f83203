"""Every verb of the store, in a database where another policy has come far: no command of it reads what the other one left.

The writes are the rows of tests/shared/test_late_writes.py. Each runs under MongoDB's profiler. Queries that services repeat are
examined by the length of their own run: tests/shared/test_looks.py.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from shared.names import TRAIN_SPLIT
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.shared.episodes import whole_run
from tests.shared.late_write_rows import ROWS
from tests.shared.looks import COUNTS, GROWING, OFTEN, ends_every_lease, fill, of_another_policy

GROWN = 300  # groups
MOST = 60  # keys and documents that a command may examine: a row makes some ten documents
Document = dict[str, Any]
Grown = dict[str, list[Document]]
RECORD, TASK, NOW = "main:train:0:t0:0:1", "main:train:0:t0", datetime.now(UTC)

READS: dict[str, Callable[[Store], Awaitable[Any]]] = {
    "data.count_above": lambda store: store.data.count_above("main", 0),
    "data.load": lambda store: store.data.load([RECORD]),
    "evaluation.count_round": lambda store: store.evaluation.count_round("main", 0),
    "evaluation.epochs": lambda store: store.evaluation.epochs("main"),
    "evaluation.round_tasks": lambda store: store.evaluation.round_tasks("main", 0),
    "evaluation.round_records": lambda store: store.evaluation.round_records([RECORD]),
    "events.last": lambda store: store.events.last("episode", 5),
    "events.since": lambda store: store.events.since("episode", NOW, 5),
    "images.described": lambda store: store.images.described("0" * 64),
    "images.sizes": lambda store: store.images.sizes(["0" * 64]),
    "notes.newest": lambda store: store.notes.newest(),
    "notes.of": lambda store: store.notes.of(RECORD),
    "notes.records_with": lambda store: store.notes.records_with("a"),
    "notes.views": lambda store: store.notes.views(),
    "outlook.count_failing": lambda store: store.outlook.count_failing("main", 3),
    "questions.chain": lambda store: store.questions.chain({"trained_steps": 1, "policy": "main"}),
    "questions.has_tasks": lambda store: store.questions.has_tasks(),
    "questions.has_unended_tasks": lambda store: store.questions.has_unended_tasks(),
    "questions.open_demands": lambda store: store.questions.open_demands("main"),
    "questions.policies": lambda store: store.questions.policies(),
    "questions.ready_versions": lambda store: store.questions.ready_versions("main"),
    "questions.records_of": lambda store: store.questions.records_of(TASK),
    "questions.seated_records": lambda store: store.questions.seated_records(TRAIN_SPLIT, 10),
    "questions.slots_to_play": lambda store: store.questions.slots_to_play("main", 10),
    "records.get_many": lambda store: store.records.get_many([RECORD]),
    "records.recent": lambda store: store.records.recent(10),
    "records.tokens_of": lambda store: store.records.tokens_of([RECORD]),
    "resettling.group": lambda store: store.resettling.group(TASK),
    "resettling.outcomes": lambda store: store.resettling.outcomes("main", [TASK]),
    "resettling.scores": lambda store: store.resettling.scores(TASK),
    "rules.all": lambda store: store.rules.all("main"),
    "rules.policies": lambda store: store.rules.policies(),
    "settings.of_worker": lambda store: store.settings.of_worker("w"),
    "steps.metrics_of": lambda store: store.steps.metrics_of("main", 1, [0]),
    "steps.newest_metrics": lambda store: store.steps.newest_metrics("main", [0], 5),
    "steps.surviving": lambda store: store.steps.surviving("main", [0]),
    "tasks.ended_of": lambda store: store.tasks.ended_of([TASK]),
    "tasks.existing_payloads": lambda store: store.tasks.existing_payloads([TASK]),
    "tasks.next_seq": lambda store: store.tasks.next_seq("main", TRAIN_SPLIT),
    "tool_schemas.get_many": lambda store: store.tool_schemas.get_many(["0" * 64]),
    "unforeseen.tasks_set_aside": lambda store: store.unforeseen.tasks_set_aside(),
}
WHOLE = {  # {verb: why it reads all}
    "data.find": "of tests and exports: any query",
    "environments.all": "one document for each service",
    "leases.all": "one document for each device",
    "malformed.all": "bounded by a number, in no order",
    "questions.own_metrics": "bounded by a number",
    "questions.run_names": "of the server",
    "questions.server_time": "of the server",
    "questions.tasks_called": "a person's question, for a name that may be of a data set",
    "resettling.count_unsettled": "a what-if of the whole run",
    "resettling.played": "a what-if of the whole run",
    "services.all": "one document for each engine",
    "services.is_live": "one document for each engine",
    "tasks.count_slots": "every slot is counted",
    "versions.set_source": "those that are not pruned: keep_versions bounds them",
    "workers.all": "one document for each process",
    "workers.all_and_live": "likewise",
}
BY_ID = {  # of one document
    *("environments.heartbeat", "environments.remove", "group_scores.renew"),
    *("leases.claimed", "leases.get", "leases.is_held", "leases.renew", "leases.stay", "malformed.note"),
    *(
        "images.read",
        "routed_experts.read",
        "notes.remove_view",
        "notes.save_view",
        "records.get",
        "rules.of_task",
        "sessions.has_turn",
    ),
    *("runs.note_settings", "runs.note_step_cost", "runs.read", "runs.set_state", "services.heartbeat"),
    *("services.remove", "services.set_status", "sessions.meet_limit", "sessions.score_turn", "settings.last"),
    *("settings.of_trainer", "tasks.get", "tasks.is_played_by", "versions.check_first", "versions.find"),
    *("versions.get", "workers.heartbeat", "workers.leave"),
}


@pytest.fixture(scope="module")
def grown(mongod: Mongod) -> Grown:
    return asyncio.run(made(mongod.connection_string))


async def made(connection_string: str) -> Grown:
    async with Store.open(connection_string, "grown") as store:
        await fill(store, GROWN)
        found = {
            name: [of_another_policy(d) async for d in store.database[name].find()]
            for name in await store.database.list_collection_names()
            if name not in ("runs", "signals")
        }
        await store.client.drop_database(store.run)
    return {name: documents for name, documents in found.items() if documents}


@pytest.fixture
async def small_run(store: Store, grown: Grown) -> Store:
    """A store with the grown policy's documents."""
    for name, documents in grown.items():
        await store.database[name].insert_many(documents)
    return store


async def read_far(connection_string: str, store: Store, work: Awaitable[Any]) -> list[str]:
    """The commands of `work` that examine more than `MOST` keys or documents."""
    client: AsyncMongoClient[Document] = AsyncMongoClient(connection_string)
    database = client[store.run]
    await database.command("profile", 2)
    try:
        await work
    finally:
        await database.command("profile", 0)
    found = await database["system.profile"].find({"command.profile": {"$exists": False}}).to_list()
    await client.close()
    assert found, "the profiler saw its commands"
    return [
        f"{row['ns'].partition('.')[2]} {row['op']} {row.get('planSummary')}: {row.get('keysExamined', 0)} keys, "
        f"{row.get('docsExamined', 0)} documents, {str(row.get('command'))[:300]}"
        for row in found
        if max(row.get("keysExamined", 0), row.get("docsExamined", 0)) > MOST and not ends_every_lease(row)
    ]


async def as_it_is(work: Awaitable[Any]) -> Any:
    return await work


@pytest.mark.parametrize("verb", ROWS)
async def test_no_write_reads_documents_of_another_policy(mongod: Mongod, small_run: Store, verb: str) -> None:
    far = await read_far(mongod.connection_string, small_run, ROWS[verb](small_run, as_it_is))
    assert not far, "\n".join(far)


@pytest.mark.parametrize("verb", READS)
async def test_no_read_reads_documents_of_another_policy(mongod: Mongod, small_run: Store, verb: str) -> None:
    await whole_run(small_run)
    far = await read_far(mongod.connection_string, small_run, READS[verb](small_run))
    assert not far, "\n".join(far)


async def test_every_verb_is_examined_here_or_among_the_polling_queries_or_reads_the_whole_run(store: Store) -> None:
    called: set[str] = set()
    await fill(store, 40)
    for name, owner in owners(store).items():
        for verb in verbs_of(owner):
            setattr(owner, verb, noted(called, f"{name}.{verb}", getattr(owner, verb)))
    for look in (OFTEN | COUNTS | GROWING).values():
        await look(store)
    every = {f"{name}.{verb}" for name, owner in owners(store).items() for verb in verbs_of(owner)}
    examined = called | {verb.strip() for verb in ROWS} | READS.keys()
    assert every - examined - WHOLE.keys() - BY_ID == set(), (
        "a new verb needs a row here or in tests/shared/looks.py, or a reason"
    )
    assert (WHOLE.keys() | BY_ID) - every == set()
    assert (WHOLE.keys() | BY_ID) & examined == set()


def owners(store: Store) -> dict[str, Any]:
    return {name: owner for name, owner in vars(store).items() if type(owner).__name__.endswith("Verbs")}


def verbs_of(owner: Any) -> list[str]:
    named = (verb for verb, _ in inspect.getmembers(type(owner), callable))
    return [verb for verb in named if not verb.startswith("_") and verb != "ensure_indexes"]


def noted(called: set[str], name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        called.add(name)
        return verb(*arguments, **options)

    return call
