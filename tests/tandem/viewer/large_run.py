"""A finished run of any size, made by the server itself from one document of each kind: 100,000 groups in a minute.

Every group has `RECORDS` episodes, every second of them three turns and the others two; each step trained
`GROUPS_PER_STEP` groups, when the last of them ended. `ROUNDS` versions were scored on held-out tasks.
"""

from datetime import datetime, timedelta
from typing import Any

from shared.documents import DataDispatch, DBRecordData, DispatchedSamplingTask, Record, Task, TaskPayload
from shared.documents.packed import pack_floats, pack_ints
from shared.documents.replies import SampledResponse
from shared.documents.run import Admission, InferenceService, PolicyVersion, TrainedStep, Worker
from shared.documents.states import DataStatus, DispatchStatus, RecordStatus, ServiceStatus, SlotStatus, TaskStatus
from shared.documents.trainer_logprobs import TokenMark, TrainerLogprobs, TurnLogprobs
from shared.names import EVAL_SPLIT, TRAIN_SPLIT
from shared.store import Store
from shared.store.pipelines import EPOCH

Document = dict[str, Any]
RECORDS, GROUPS_PER_STEP, AT_ONCE = 4, 16, 1000
ROUNDS, HELD_OUT = 20, 100  # of held-out tasks, and how many each has
SECOND_MS = 1000
EPISODE_S = 20
TEXT = "The answer is 42. " * 8
TOKENS = 40
METRICS = {
    **{"reward/mean": 0.5, "reward/std": 0.4, "data/staleness_mean": 0.6, "data/staleness_max": 2.0},
    **{"loss/mismatch_mean_nats": 0.001, "loss/k3_mean": 1e-4, "loss/entropy_mean_nats": 0.3, "data/ready_groups": 3.0},
    **{"loss/clipped_fraction": 0.01, "time/total_s": 10.0, "time/wait_s": 4.0, "perf/tokens_per_s": 1500.0},
    **{f"loss_by_turn/{turn}/entropy_mean_nats": 0.1 for turn in range(100)},
}


async def make(store: Store, groups: int) -> int:
    """Returns the number of dispatches. The run must be empty."""
    await _multiply(store, "tasks", _task(), groups, _names("$n"))
    k: Document = {"$mod": ["$n", RECORDS]}
    group: Document = {"$floor": {"$divide": ["$n", RECORDS]}}
    await _multiply(store, "records", _record(), groups * RECORDS, _record_fields(group, k))
    data: Document = {"record": _rid(group, k), "task": _tid(group), "seq": group, "source": _source(group)}
    marks = {"trained_steps": [_step(group)], "last_trained_step": _step(group)}
    data["dispatches"] = _by_turns([_data_turn(_rid(group, k), turn) for turn in range(3)])
    await _multiply(store, "record_data", _data(), groups * RECORDS, {"_id": _rid(group, k), **data, **marks})
    await _multiply(store, "trainer_logprobs", _logprobs(), groups * RECORDS, _logprobs_fields(group, k))
    # Five turns for two episodes: of every five numbers the first two belong to the one, the others to the other.
    pair: Document = {"$floor": {"$divide": ["$n", 5]}}
    place: Document = {"$mod": ["$n", 5]}
    second: Document = {"$cond": [{"$gte": [place, 2]}, 1, 0]}
    number: Document = {"$add": [{"$multiply": [2, pair]}, second]}
    rid = _rid({"$floor": {"$divide": [number, RECORDS]}}, {"$mod": [number, RECORDS]})
    turn: Document = {"$subtract": [place, {"$multiply": [2, second]}]}
    began = {"$add": [EPOCH, {"$toLong": {"$multiply": [number, SECOND_MS]}}]}
    turns = groups * RECORDS * 5 // 2
    fields = {"_id": {"$concat": [rid, ":", _text(turn)]}, "record": rid, "turn": {"$toInt": turn}}
    times = {"created_at": began, "finished_at": {"$add": [began, SECOND_MS]}}
    await _multiply(store, "dispatched_sampling_tasks", _turn(), turns, {**fields, **times})
    await _steps(store, groups // GROUPS_PER_STEP)
    return turns


async def _multiply(store: Store, collection: str, one: Document, number: int, changed: Document) -> None:
    """`number` documents like `one`; `changed`: expressions over `$n`, which counts them."""
    seed = store.database["seed_of_the_generator"]
    await seed.replace_one({"_id": 0}, {"_id": 0}, upsert=True)
    rest = {name: {"$literal": value} for name, value in one.items() if name not in changed}
    stages: list[Document] = [
        {"$project": {"a": {"$range": [0, -(-number // AT_ONCE)]}}},
        {"$unwind": "$a"},
        {"$project": {"a": 1, "b": {"$range": [0, AT_ONCE]}}},
        {"$unwind": "$b"},
        {"$project": {"n": {"$add": [{"$multiply": ["$a", AT_ONCE]}, "$b"]}}},
        {"$match": {"n": {"$lt": number}}},
        {"$project": {**rest, **changed}},
        {"$out": collection},
    ]
    await (await seed.aggregate(stages)).to_list()
    await seed.drop()


def _text(number: Document | str) -> Document:
    return {"$toString": {"$toInt": number}}


def _tid(group: Document | str) -> Document:
    return {"$concat": ["main:train:0:t", _text(group)]}


def _rid(group: Document, k: Document) -> Document:
    return {"$concat": [_tid(group), ":", _text(k), ":1"]}


def _source(group: Document | str) -> Document:
    return {"$concat": ["source-", _text({"$mod": [group, 5]})]}


def _step(group: Document) -> Document:
    return {"$toInt": {"$add": [1, {"$floor": {"$divide": [group, GROUPS_PER_STEP]}}]}}


def _names(group: str) -> Document:
    return {"_id": _tid(group), "tid": {"$concat": ["t", _text(group)]}, "seq": group, "source": _source(group)}


def _record_fields(group: Document, k: Document) -> Document:
    began = {"$add": [EPOCH, {"$toLong": {"$multiply": ["$n", SECOND_MS]}}]}
    return {
        "_id": _rid(group, k),
        "task": _tid(group),
        "tid": {"$concat": ["t", _text(group)]},
        "traj_id": {"$toInt": k},
        "source": _source(group),
        "traj": _by_turns([{"$concat": [_rid(group, k), f":{turn}"]} for turn in range(3)]),
        "worker": {"$concat": ["sampler:h:", _text({"$mod": ["$n", 80]})]},
        "score": {"$cond": [{"$eq": [{"$mod": ["$n", 3]}, 0]}, 1.0, 0.0]},
        "last_trained_step": _step(group),
        "policy_versions": [_step(group)],
        "created_at": began,
        "finished_at": {"$add": [began, EPISODE_S * SECOND_MS]},
        "status": {"$cond": [{"$eq": [{"$mod": ["$n", 97]}, 0]}, RecordStatus.FAILED.value, RecordStatus.READY.value]},
    }


def _by_turns(three: list[Document]) -> Document:
    """Of the first two and the third, what the episode has: every second one has three turns."""
    return {"$cond": [{"$eq": [{"$mod": ["$n", 2]}, 1]}, three, three[:2]]}


def _data_turn(record: Document, turn: int) -> Document:
    said = {"turn": {"$literal": turn}, "advantage": 0.5, "temperature": 1.0, "trained": {"$literal": True}}
    return {"id": {"$concat": [record, f":{turn}"]}, **said}


def _task() -> Document:
    slot = {"status": SlotStatus.SCORED, "free_at": EPOCH, "score": 1.0, "attempt": 1}
    payload = TaskPayload(query=TEXT, answer="42", scorer="math")
    named = {"id": "t", "tid": "t", "split": TRAIN_SPLIT, "epoch": 0, "policy": "main", "seq": 0, "source": "s"}
    scores = [1.0] * RECORDS
    settled = {
        "status": TaskStatus.SETTLED,
        "scores": scores,
        "data_of": ["main"],
        "outcome": "ready",
        "free_at": EPOCH,
    }
    slots = [{"traj_id": k, **slot} for k in range(RECORDS)]
    times = {"created_at": EPOCH, "settled_at": EPOCH}
    return Task.model_validate(
        {**named, **settled, **times, "payload": payload, "num_generations": RECORDS, "slots": slots}
    ).to_mongo()


def _record() -> Document:
    named = {"id": "r", "task": "t", "traj_id": 0, "attempt": 1, "tid": "t", "split": TRAIN_SPLIT, "policy": "main"}
    ended = {"status": RecordStatus.READY, "termination": "answered", "answer": "42", "num_turns": 2, "num_tokens": 80}
    return Record.model_validate({**named, **ended, "source": "s", "worker": "w", "trained_count": 1}).to_mongo()


def _turn() -> Document:
    ids = pack_ints(list(range(TOKENS)))
    reply = SampledResponse(
        text=TEXT,
        message={"role": "assistant", "content": TEXT},
        output_ids=ids,
        output_logprobs=pack_floats([-0.1] * TOKENS),
        finish_reason="stop",
    )
    return DispatchedSamplingTask(
        id="d",
        record="r",
        policy="main",
        turn=0,
        parent=None,
        shared_length=0,
        prompt_ids=ids,
        messages=[{"role": "user", "content": TEXT}],
        tools_hash="",
        sampling_params={"temperature": 1.0},
        service="http://engine:1",
        response=reply,
        weight_versions=[(1, TOKENS)],
        status=DispatchStatus.COMPLETED,
        advantage=0.5,
    ).to_mongo() | {"created_at": EPOCH, "finished_at": EPOCH}


def _data() -> Document:
    tokens = {"num_tokens": 80, "num_trained_tokens": 40, "min_version": 1, "max_version": 1, "versions": [1]}
    named = {
        "id": "r",
        "record": "r",
        "task": "t",
        "group_size": RECORDS,
        "seq": 0,
        "policy": "main",
        "split": TRAIN_SPLIT,
    }
    dispatches: list[DataDispatch] = []
    trained = {"status": DataStatus.TRAINED, "trained_count": 1, "reward": 1.0, "digest": "", "dispatches": dispatches}
    return DBRecordData.model_validate({**named, **tokens, **trained, "source": "s", "created_at": EPOCH}).to_mongo()


def _logprobs() -> Document:
    turns = [
        TurnLogprobs(
            turn=turn,
            first=TOKENS * (2 * turn + 1),
            logprobs=pack_floats([-0.1] * TOKENS),
            marks=bytes([TokenMark.HAS_LOSS] * TOKENS),
        )
        for turn in range(2)
    ]
    found = {"largest_difference": 0.0, "largest_turn": 0, "largest_place": TOKENS}
    named = {"id": "r", "data": "r", "record": "r", "policy": "main", "step": 1, "trainer_generation": 1}
    return TrainerLogprobs.model_validate({**named, "turns": turns, **found, "created_at": EPOCH}).to_mongo()


def _logprobs_fields(group: Document, k: Document) -> Document:
    rid, step = _rid(group, k), _step(group)
    largest = {"largest_difference": {"$divide": [{"$mod": ["$n", 1000]}, 1000]}}
    return {"_id": {"$concat": [rid, ":", _text(step), ":1"]}, "data": rid, "record": rid, "step": step, **largest}


def _at(step: int) -> datetime:
    """When its last episode ended."""
    return EPOCH + timedelta(seconds=step * GROUPS_PER_STEP * RECORDS + EPISODE_S)


def _held_out_task(number: int, version: int) -> Task:
    named = {"_id": f"main:{EVAL_SPLIT}:{version}:h{number}", "tid": f"h{number}", "source": f"source-{number % 5}"}
    asked = {"split": EVAL_SPLIT, "epoch": version, "at_version": version, "seq": version * HELD_OUT + number}
    scores = [float((number + version + k) % 3 == 0) for k in range(RECORDS)]
    return Task.from_mongo({**_task(), **named, **asked, "scores": scores})


async def _steps(store: Store, number: int) -> None:
    groups = [
        [(f"main:train:0:t{g}", RECORDS) for g in range(n * GROUPS_PER_STEP, (n + 1) * GROUPS_PER_STEP)]
        for n in range(number)
    ]
    named = [{"policy": "main", "step": n + 1, "trainer_generation": 1} for n in range(number)]
    steps = [
        TrainedStep.model_validate(
            {"id": f"main:{n + 1}:1", **one, "groups": groups[n], "metrics": METRICS, "created_at": _at(n + 1)}
        )
        for n, one in enumerate(named)
    ]
    versions = [
        PolicyVersion(id=f"main:{n}", policy="main", version=n, step=n, path=f"v{n}", files={}, created_at=_at(n))
        for n in range(number + 1)
    ]
    rounds = [_held_out_task(n, round * max(1, number // ROUNDS)) for round in range(ROUNDS) for n in range(HELD_OUT)]
    for collection, documents in (("trained_steps", steps), ("policy_versions", versions), ("tasks", rounds)):
        for start in range(0, len(documents), AT_ONCE):
            rows = [one.to_mongo() for one in documents[start : start + AT_ONCE]]
            await store.database[collection].insert_many(rows)
    await store.runs.ensure()
    await store.runs.start_trainer(
        "main", Admission(groups_per_step=GROUPS_PER_STEP, max_staleness=2, num_steps=number)
    )
    up = ServiceStatus.UP
    await store.services.heartbeat(
        InferenceService(id="http://engine:1", url="http://engine:1", policy="main", version=number, status=up)
    )
    await store.workers.heartbeat(Worker(id="sampler:h:0", kind="sampler", host="h", pid=1, doing="playing"))
