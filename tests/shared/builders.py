"""Small documents for tests."""

from typing import Any

from shared.documents import DBRecordData, Slot, Task, TaskPayload, task_id
from shared.store import Store
from shared.store.pipelines import EPOCH
from shared.trees import RecordTree, TreeDispatch


def make_task(seq: int, *, num_generations: int = 2, split: str = "train", epoch: int = 0, **fields: Any) -> Task:
    tid = fields.pop("tid", f"t{seq}")
    return Task(
        id=task_id("main", split, epoch, tid),
        tid=tid,
        split=split,
        epoch=epoch,
        policy="main",
        seq=seq,
        source="test",
        payload=TaskPayload(query="2+2?", answer="4"),
        num_generations=num_generations,
        slots=[Slot(traj_id=k, free_at=EPOCH) for k in range(num_generations)],
        free_at=EPOCH,
        **fields,
    )


def make_tree(record_id: str, *, version: int = 0, advantage: float = 1.0) -> RecordTree:
    import numpy as np

    return RecordTree(
        record_id=record_id,
        token_ids_N=np.array([1, 2, 3, 4], dtype=np.int32),
        parents_N=np.array([-1, 0, 1, 2], dtype=np.int32),
        dispatches_N=np.array([-1, -1, 0, 0], dtype=np.int32),
        logprobs_N=np.array([0, 0, -0.5, -0.25], dtype=np.float32),
        versions_N=np.array([-1, -1, version, version], dtype=np.int32),
        dispatches=(TreeDispatch(f"{record_id}:0", 0, advantage),),
    )


def make_data(task: Task, traj_id: int, *, group_size: int = 2, version: int = 0, **fields: Any) -> DBRecordData:
    rid = f"{task.id}:{traj_id}:1"
    return DBRecordData(
        id=rid,
        task=task.id,
        group_size=group_size,
        seq=task.seq,
        policy=task.policy,
        split=task.split,
        source=task.source,
        reward=1.0,
        **{**DBRecordData.tree_fields(make_tree(rid, version=version)), **fields},
    )


async def import_tasks(store: Store, n: int, **kwargs: Any) -> list[Task]:
    tasks = [make_task(seq, **kwargs) for seq in range(n)]
    await store.tasks.insert_new(tasks)
    return tasks


async def claim(store: Store, worker: str = "w", **kwargs: Any) -> Any:
    options = {"policy": "main", "split": "train", "lease_s": 60.0, "seq_limit": None} | kwargs
    return await store.tasks.claim_slot(worker, **options)
