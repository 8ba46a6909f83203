"""Small evaluation rounds for tests, written by the store's verbs."""

from typing import Any

from shared.documents.states import RecordStatus
from shared.store import Store
from tests.shared.builders import claim, make_task

SOURCES = {"t0": "sums", "t1": "boxes", "t2": "boxes"}


async def import_set(store: Store, *, num_generations: int = 2) -> None:
    tasks = [make_task(seq, split="eval", at_version=0, num_generations=num_generations) for seq in range(3)]
    await store.tasks.insert_new([task.model_copy(update={"source": SOURCES[task.tid]}) for task in tasks])


async def play(
    store: Store, scores: dict[str, list[float | None]], version: int, *, limit: int | None = None, **values: Any
) -> None:
    """Every slot of a round, or the next `limit`, then settled. None: the infrastructure failed it."""
    left = {tid: list(group) for tid, group in scores.items()}
    while limit != 0 and (held := await claim(store, split="eval", served_versions=[version])) is not None:
        limit = None if limit is None else limit - 1
        record = await store.records.start(held, "w")
        score = left[held.task.tid].pop(0)
        if score is None:
            await store.tasks.retry_slot(held, "engine down", delay_s=0, max_failures=1)
            continue
        facts = {
            "score": score,
            "num_turns": 2,
            "num_tokens": 10,
            "termination": "answered",
            "policy_versions": [version],
        }
        await store.records.move(record.id, RecordStatus.SCORED, facts | values)
        await store.tasks.finish_slot(held, score)
    while (task := await store.tasks.claim_settlement("s", policy="main", lease_s=60)) is not None:
        await store.tasks.finish_settlement(task, "evaluated", abandoned=False)
