"""The services' polling queries, and how much each reads by the size of the run.

    python -m tests.shared.looks 1000 100000     # groups that were played and trained

A run is filled with that many finished groups (two records each), their evaluation rounds, versions and dead workers,
and with the same few groups that are under way. Each question is asked once under MongoDB's profiler, which says how
many index keys and documents it examined. `tests/shared/test_looks.py` holds at two sizes that those do not grow.
"""

import argparse
import asyncio
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from pymongo import AsyncMongoClient

from shared.documents import Claim, DataClaim, DispatchedSamplingTask, Record, task_of
from shared.documents.agent_sessions import AgentSession, ClientRequest, SessionEnd
from shared.documents.run import Admission, InferenceService, Worker
from shared.documents.states import DataStatus, ServiceStatus, TaskStatus
from shared.names import EVAL_SPLIT, TRAIN_SPLIT
from shared.processes.interrupt import run_command
from shared.processes.mongod import Mongod
from shared.store import Store
from shared.store.pipelines import FAR
from shared.store.sessions import Opened
from shared.tasks.admission import seq_limit
from tests.shared.builders import make_data, make_task

Document = dict[str, Any]
Look = Callable[[Store], Awaitable[Any]]
Change = Callable[[Document], Document]
GROUPS_PER_STEP, STALENESS = 16, 2
READY, RUNNING, COMPLETED, WAITING = 20, 12, 3, 200  # groups that are under way, in a run of any size
EVAL_TASKS, STEPS_PER_ROUND = 20, 10
ADMISSIONS = {"main": Admission(groups_per_step=GROUPS_PER_STEP, max_staleness=STALENESS)}
AT_ONCE = 5_000
FEW = 5  # fewer than a short run has
FEEDBACK = 3  # groups that wait for it
PLAYED, KEY_HASH = "main:eval:9:elsewhere:0:1", "0" * 64  # the attempt of an agent elsewhere that goes on


async def admit(store: Store) -> None:
    limit, _ = await seq_limit(store, ["main"], ADMISSIONS)
    assert limit > 0


async def claim_train(store: Store) -> None:
    limit, _ = await seq_limit(store, ["main"], ADMISSIONS)
    await _claim(store, TRAIN_SPLIT, limit)


async def claim_train_ungated(store: Store) -> None:
    await _claim(store, TRAIN_SPLIT, None)


async def claim_eval(store: Store) -> None:
    await _claim(store, EVAL_SPLIT, None)


async def _claim(store: Store, split: str, limit: int | None) -> None:
    served = [newest.version] if (newest := await store.versions.newest("main")) else []
    verb = store.tasks.claim_slots
    await verb("w", policy="main", split=split, lease_s=60, seq_limit=limit, served_versions=served, max_failures=8)


async def open_next_turn(store: Store) -> None:
    """The gateway's request: what it writes before it asks, its reply, and the attempt as another process reads it."""
    client = ClientRequest(identity="i", cause="first", requested_by="g")
    dispatch = _turn(PLAYED).model_copy(update={"client": client})
    assert await store.sessions.open_turn(dispatch) is Opened.OPEN
    assert await store.sessions.save_reply(dispatch)
    assert len((await store.records.dispatches_of([PLAYED]))[PLAYED]) == 1


async def train_a_step(store: Store) -> None:
    groups = await store.data.ready_groups("main", GROUPS_PER_STEP)
    claim = DataClaim(trainer_generation=1, step=10**6)
    await store.data.release_claims("main", 1)
    await store.data.claim([rid for group in groups for rid in group["records"]], claim)
    await store.data.commit_step("main", claim, max_trained_count=1)


OFTEN: dict[str, Look] = {
    "sampler, every poll_s: the run": lambda store: store.runs.get(),
    "sampler, every poll_s: engines": lambda store: store.services.live("main"),
    "sampler, every poll_s: environments": lambda store: store.environments.live(),
    "sampler, every poll_s: newest version": lambda store: store.versions.newest("main"),
    "sampler, every poll_s: admission": admit,
    "sampler, every slot: admission and claim": claim_train,
    "sampler, every poll_s: claim of an evaluation": claim_eval,
    "sampler, every episode: claim of a settlement": lambda store: store.tasks.claim_settlement(
        "w", policy="main", lease_s=60
    ),
    "sampler, every round of settlements: claim of its groups": lambda store: store.settlements.claim(
        [task_of(PLAYED)], "w", policy="main", lease_s=60
    ),
    "gateway, every new key: its attempt": lambda store: store.sessions.find(KEY_HASH),
    "gateway, every request: a turn": open_next_turn,
    "gateway, every request: its lease": lambda store: store.tasks.renew_leases([_played_claim()], 60),
    "gateway, every second: attempts that have ended": lambda store: store.sessions.over([PLAYED]),
    "gateway, every renew_s: attempts that it has": lambda store: store.sessions.held_by("w", [_played_claim()]),
    "gateway, a score": lambda store: store.sessions.post_score(PLAYED, 1.0),
    "gateway, every attempt: its end": lambda store: store.sessions.end(PLAYED, SessionEnd(score=1.0)),
    "tandem feedback --list: episodes that wait": lambda store: store.feedback.waiting(2),
    "sampler, every episode: overdue feedback": lambda store: store.feedback.end_overdue("main"),
    "trainer, while it waits: what the tasks wait for": lambda store: store.outlook.of_run(),
    "keeper, every poll_s: evaluation that is awaited": lambda store: store.evaluation.awaited_version(
        "main", before=10**6
    ),
    "trainer, every 0.1 s: paused": lambda store: store.runs.is_paused(),
    "trainer, every 0.1 s: groups that are ready": lambda store: store.data.ready_groups("main", 4 * GROUPS_PER_STEP),
    "trainer, every 0.1 s: the same, offline": lambda store: store.data.ready_groups(
        "main", 4 * GROUPS_PER_STEP, least_trained_first=True
    ),
    "trainer, every 0.1 s: first that is not ended": lambda store: store.tasks.first_unended(TRAIN_SPLIT),
    "trainer, every step: still current": lambda store: store.runs.is_current_trainer("main", 1),
    "trainer, every step: borrowing and marks": train_a_step,
    "trainer, every step: how many are ready": lambda store: store.data.count_ready_groups("main"),
    "trainer, every step: rounds that are open": lambda store: store.evaluation.open_versions("main"),
    "launcher, every 2 s: failures": lambda store: store.tasks.count_failures(),
    "trainer, every step: versions whose files exist": lambda store: store.versions.unpruned("main"),
    "trainer, every version: it": lambda store: store.versions.some("main", [3]),
    "trainer, every step: an engine wants all weights": lambda store: store.services.needs_full_weights("main"),
    "tandem status: slots in progress": lambda store: store.questions.slots_in_progress(TRAIN_SPLIT),
    "tandem status: outcomes of groups": lambda store: store.questions.abandoned_tasks(FEW),
    "tandem status: data set aside": lambda store: store.questions.set_aside(FEW),
    "tandem status: failed attempts": lambda store: store.questions.failed_attempts(FEW),
    "tandem status: tasks, up to a number": lambda store: store.tasks.count_by_status(most=FEW),
    "tandem status: records, up to a number": lambda store: store.records.count_by_status(FEW),
    "tandem status: training data, up to a number": lambda store: store.data.count_by_status(most=FEW),
    "tandem status: episodes of the last minute": lambda store: store.questions.finished_within(60.0),
}
# Numbers of all documents: by an index alone.
COUNTS: dict[str, Look] = {
    "tandem status: tasks": lambda store: store.tasks.count_by_status(),
    "tandem status: records": lambda store: store.records.count_by_status(),
    "tandem status: training data": lambda store: store.data.count_by_status(),
}
# Of these the answer itself has a part for every version, task or worker of the run.
GROWING: dict[str, Look] = {
    "keeper, every version: all versions": lambda store: store.versions.all("main"),
    "launcher, every 2 s: live workers": lambda store: store.workers.live(),
}


# ---------------------------------------------------------------------- a run that has come far


async def fill(store: Store, finished: int, *, turns: int = 1, change: Change = lambda document: document) -> None:
    """`finished` groups that were played, and either trained, abandoned, skipped or set aside; and the few under way. `turns`: of
    each record. `change`: of every document of an episode, before it is inserted."""

    async def insert(collection: str, documents: Iterable[Document]) -> None:
        await _insert(store, collection, map(change, documents))

    under_way = READY * ["ready"] + COMPLETED * ["completed"] + RUNNING * ["running"] + WAITING * ["created"]
    kinds = (["trained"] * 16 + ["abandoned", "stale", "dropped", "skipped"]) * (finished // 20) + under_way
    await insert("tasks", (_task(seq, kind) for seq, kind in enumerate(kinds)))
    await insert("record_data", (d for seq, kind in enumerate(kinds) for d in _data(seq, kind)))
    await insert("records", (_record(f"main:train:0:t{seq}:0:1", "scored") for seq in range(finished)))
    await insert("records", [_record(PLAYED, "running", KEY_HASH)])
    await insert("dispatched_sampling_tasks", _turns(finished, turns))
    await insert("tasks", (_waiting_task(len(kinds) + k) for k in range(FEEDBACK)))
    steps = finished // GROUPS_PER_STEP
    rounds = range(0, steps + 1, STEPS_PER_ROUND)
    await insert("tasks", (_eval_task(k, version) for version in rounds for k in range(EVAL_TASKS)))
    await insert("policy_versions", (_version(step) for step in range(steps + 1)))
    await store.runs.start_trainer("main", ADMISSIONS["main"])
    service = InferenceService(id="http://a:1", url="http://a:1", policy="main", version=steps, status=ServiceStatus.UP)
    await store.services.heartbeat(service)
    worker = Worker(id="w", kind="sampler", host="h", pid=1).to_mongo()
    await insert("workers", (worker | {"_id": f"w{k}", "heartbeat": None} for k in range(finished // 50)))


_TASK, _DATA = make_task(0).to_mongo(), make_data(make_task(0), 0).to_mongo()
_STATUS = {"trained": "settled", "ready": "settled", "stale": "settled", "dropped": "settled"}


def _task(seq: int, kind: str) -> Document:
    status = _STATUS.get(kind, kind)
    slots = [{**slot, "status": "open" if status == "created" else "leased"} for slot in _TASK["slots"]]
    if status not in ("created", "running"):
        slots = [{**slot, "status": "scored", "score": 1.0, "record_id": "r"} for slot in slots]
    task = {**_TASK, "_id": f"main:train:0:t{seq}", "tid": f"t{seq}", "seq": seq, "status": status, "slots": slots}
    return {**task, "data_of": ["main"] if status == "settled" else []}


def _data(seq: int, kind: str) -> Iterator[Document]:
    if kind not in ("trained", "ready", "stale", "dropped"):
        return
    step = seq // GROUPS_PER_STEP if kind == "trained" else None
    marks = {"trained_count": int(step is not None), "trained_steps": [step] * (step is not None)}
    for k in range(2):
        rid, task = f"main:train:0:t{seq}:{k}:1", f"main:train:0:t{seq}"
        found = {**_DATA, "_id": rid, "record": rid, "task": task, "seq": seq, "status": DataStatus(kind).value}
        yield {**found, **marks, "last_trained_step": step, "claim": None}


async def open_groups(store: Store, number: int, *, waiting: int) -> None:
    """Insert so many groups with every slot leased, followed by groups that are not opened."""
    await _insert(store, "tasks", (_task(seq, "running") | {"free_at": FAR} for seq in range(number)))
    await _insert(store, "tasks", (_task(number + k, "created") for k in range(waiting)))


def ready_data(seq: int) -> Iterator[Document]:
    """Of a group that waits to be trained."""
    return _data(seq, "ready")


def _eval_task(k: int, version: int) -> Document:
    task = _task(version * EVAL_TASKS + k, TaskStatus.SETTLED)
    named = {"_id": f"main:eval:{version}:t{k}", "tid": f"t{k}", "epoch": version, "at_version": version}
    return {**task, **named, "split": EVAL_SPLIT}


def _played_claim() -> Claim:
    return Claim(task=make_task(0), traj_id=0, attempt=1)


def _record(name: str, status: str, key_hash: str | None = None) -> Document:
    session = AgentSession(key_hash=key_hash or uuid.uuid4().hex, end=None if key_hash else SessionEnd(score=1.0))
    record = Record.of(_played_claim(), "w", session).to_mongo()
    return {**record, "_id": name, "task": name.rsplit(":", 2)[0], "status": status}


def _turns(records: int, number: int) -> Iterator[Document]:
    """Of one document, that of another record is a copy: a model for each would take most of the time."""
    first = _turn("main:train:0:t0:0:1").to_mongo()
    for seq in range(records):
        record = f"main:train:0:t{seq}:0:1"
        yield from ({**first, "_id": f"{record}:{turn}", "record": record, "turn": turn} for turn in range(number))


def of_another_policy(value: Any) -> Any:
    """The same document, of policy `other`."""
    if isinstance(value, dict):
        return {key: of_another_policy(one) for key, one in value.items()}
    if isinstance(value, list):
        return [of_another_policy(one) for one in value]
    if isinstance(value, str) and (value == "main" or value.startswith("main:")):
        return "other" + value.removeprefix("main")
    return value


def _turn(record: str) -> DispatchedSamplingTask:
    empty: Document = {"parent": None, "shared_length": 0, "prompt_ids": b"", "messages": [], "tools_hash": ""}
    return DispatchedSamplingTask(id=f"{record}:0", record=record, turn=0, sampling_params={}, **empty)


def _waiting_task(seq: int) -> Document:
    task, until = _task(seq, "running"), datetime(2100, 1, 1, tzinfo=UTC)
    slots = [
        {**slot, "status": "waiting", "record_id": f"r{k}", "free_at": until} for k, slot in enumerate(task["slots"])
    ]
    return {**task, "slots": slots, "waiting_until": until}


def _version(step: int) -> Document:
    files = {"model.safetensors": {"sha256": uuid.uuid4().hex, "bytes": 1}}
    number: Document = {"_id": f"main:{step}", "policy": "main", "version": step, "step": step, "path": f"/{step}"}
    return {**number, "files": files, "withdrawn_to": None, "pruned": step > 4}


async def _insert(store: Store, collection: str, documents: Iterable[Document]) -> None:
    remaining = iter(documents)
    while batch := list(islice(remaining, AT_ONCE)):
        await store.database[collection].insert_many(batch, ordered=False)


# ---------------------------------------------------------------------- under the profiler


@dataclass(frozen=True, slots=True)
class Examined:
    """By all commands of one look."""

    keys: int
    documents: int
    milliseconds: int
    plans: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.keys:>8} {self.documents:>8} {self.milliseconds:>6}"


async def examine(connection_string: str, store: Store, look: Look) -> Examined:
    """Nothing else may ask this database meanwhile."""
    client: AsyncMongoClient[Document] = AsyncMongoClient(connection_string)
    database = client[store.run]
    try:
        await database.command("profile", 2)
        await look(store)
        await database.command("profile", 0)
        found = await database["system.profile"].find({"command.profile": {"$exists": False}}).to_list()
        await database["system.profile"].drop()
    finally:
        await client.close()
    found = [row for row in found if not ends_every_lease(row)]
    return Examined(
        sum(row.get("keysExamined", 0) for row in found),
        sum(row.get("docsExamined", 0) for row in found),
        sum(row["millis"] for row in found),
        tuple(row.get("planSummary", row["op"]) for row in found),
    )


def ends_every_lease(row: Document) -> bool:
    """Of the profiler: whether it is `let_time_pass` of a test, which no service sends."""
    return row["op"] == "update" and "datetime.datetime(1970" in str(row.get("command"))


async def _main(sizes: Sequence[int]) -> None:
    with tempfile.TemporaryDirectory() as folder, Mongod(Path(folder)) as mongod:
        found: dict[str, list[Examined]] = {}
        for size in sizes:
            async with Store.open(mongod.connection_string, f"looks-{size}") as store:
                await fill(store, size)
                for name, look in (OFTEN | COUNTS | GROWING).items():
                    found.setdefault(name, []).append(await examine(mongod.connection_string, store, look))
    print(f"{'finished groups':52}", *(f"{size:>24}" for size in sizes))
    print(f"{'':52}", *(f"{'keys':>8} {'docs':>8} {'ms':>6}" for _ in sizes))
    for name, by_size in found.items():
        print(f"{name:52}", *by_size)


def main() -> None:
    parser = argparse.ArgumentParser(description="How much the services' questions read, by the size of the run.")
    parser.add_argument("sizes", nargs="*", type=int, default=[1_000, 10_000], help="finished groups")
    asyncio.run(_main(parser.parse_args().sizes))


if __name__ == "__main__":
    run_command(main)
