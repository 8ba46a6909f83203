"""Small documents for tests."""

from collections.abc import Mapping
from typing import Any

from shared.documents import DBRecordData, DispatchedSamplingTask, SampledResponse, Slot, Task, TaskPayload, task_id
from shared.documents.packed import pack_floats, pack_ints
from shared.documents.states import DispatchStatus
from shared.store import Store
from shared.store.pipelines import EPOCH
from shared.tokens.flatten import data_fields, flatten


def make_task(
    seq: int, *, num_generations: int = 2, policy: str = "main", split: str = "train", epoch: int = 0, **fields: Any
) -> Task:
    tid = fields.pop("tid", f"t{seq}")
    return Task(
        id=task_id(policy, split, epoch, tid),
        tid=tid,
        split=split,
        epoch=epoch,
        policy=policy,
        seq=seq,
        source="test",
        payload=TaskPayload(query="2+2?", answer="4"),
        num_generations=num_generations,
        slots=[Slot(traj_id=k, free_at=EPOCH) for k in range(num_generations)],
        free_at=EPOCH,
        **fields,
    )


def make_answer(record_id: str, *, version: int = 0) -> DispatchedSamplingTask:
    """A record's only request: 1 2 | 3 4."""
    response = SampledResponse(
        text="",
        message={"role": "assistant"},
        output_ids=pack_ints([3, 4]),
        output_logprobs=pack_floats([-0.5, -0.25]),
        finish_reason="stop",
    )
    return DispatchedSamplingTask(
        id=f"{record_id}:0",
        record=record_id,
        turn=0,
        parent=None,
        shared_length=0,
        prompt_ids=pack_ints([1, 2]),
        messages=[],
        tools_hash="",
        sampling_params={"temperature": 1.0},
        response=response,
        weight_versions=[(version, 2)],
        status=DispatchStatus.COMPLETED,
    )


def make_data(task: Task, traj_id: int, *, group_size: int = 2, version: int = 0, **fields: Any) -> DBRecordData:
    rid = f"{task.id}:{traj_id}:1"
    return DBRecordData(
        id=rid,
        record=rid,
        task=task.id,
        group_size=group_size,
        seq=task.seq,
        policy=task.policy,
        split=task.split,
        source=task.source,
        reward=1.0,
        **{**data_fields(flatten(rid, [answer := make_answer(rid, version=version)], {answer.id: 1.0})), **fields},
    )


async def import_tasks(store: Store, n: int, **kwargs: Any) -> list[Task]:
    tasks = [make_task(seq, **kwargs) for seq in range(n)]
    await store.tasks.insert_new(tasks)
    return tasks


async def let_time_pass(store: Store) -> None:
    """As if every lease and deadline had run out and every delay were over, without waiting for it."""
    tasks = store.database["tasks"]
    await tasks.update_many({}, {"$set": {"free_at": EPOCH, "slots.$[].free_at": EPOCH}})
    await tasks.update_many({"waiting_until": {"$ne": None}}, {"$set": {"waiting_until": EPOCH}})


async def claim(store: Store, worker: str = "w", **kwargs: Any) -> Any:
    options = {"policy": "main", "split": "train", "lease_s": 60.0, "seq_limit": None, "max_failures": 8} | kwargs
    return next(iter(await store.tasks.claim_slots(worker, **options)), None)


async def set_settings(store: Store, kind: str, values: Mapping[str, Any], worker: str = "w") -> None:
    """As a service does at its start."""
    await store.runs.note_settings(kind, await store.settings.keep(kind, values, worker))
