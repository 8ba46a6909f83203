"""Completed groups that need a group scorer, and a sampler's part that scores them."""

from collections.abc import AsyncIterator

from sampler.core.settlement.group_scoring import GroupScoring
from sampler.scorers import GroupRequest, Score, register_group_scorer
from sampler.settings import SamplerConfig
from shared.documents import DBRecordData, Task
from shared.documents.scoring import WeightedScorer
from shared.store import Store
from tests.sampler.episodes import MODEL
from tests.sampler.groups import completed_group
from tests.sampler.settling import settle

ONE = WeightedScorer(name="by_length", weight=0.5)


def requests_of_by_length() -> list[GroupRequest]:
    """Registers the group scorer `by_length`; its requests. An episode's value is its place among the episodes."""
    requests: list[GroupRequest] = []

    @register_group_scorer("by_length")
    async def by_length(request: GroupRequest) -> list[Score]:
        requests.append(request)
        return [Score(place / 4, {"reason": f"place {place}"}) for place, _ in enumerate(request.episodes)]

    return requests


def config(store: Store, **values: object) -> SamplerConfig:
    return SamplerConfig.model_validate(
        {"run": store.run, "db_connection_string": "x", "model_name_or_path": MODEL, "default_scorers": [ONE], **values}
    )


def scoring(store: Store, worker: str = "w", **values: object) -> GroupScoring:
    settings = config(store, **values)

    async def settled(task: Task) -> None:
        await settle(store, task, settings)

    return GroupScoring(store, worker, settings, None, settled)


async def needing_group(store: Store, scores: list[float | None], *scorers: WeightedScorer) -> Task:
    """A completed group whose episodes said, when they ended, which group scorers they need."""
    task = await completed_group(store, scores)
    needed = [one.model_dump() for one in scorers or (ONE,)]
    is_scored = [{"s.status": "scored"}]
    change = {"$set": {"slots.$[s].group_scorers": needed}}
    await store.database["tasks"].update_one({"_id": task.id}, change, array_filters=is_scored)
    found = await store.tasks.get(task.id)
    assert found is not None
    return found


async def leased(store: Store, worker: str = "w") -> Task:
    task = await store.tasks.claim_settlement(worker, policy="main", lease_s=60, left=[])
    assert task is not None
    return task


async def data_of(store: Store) -> AsyncIterator[DBRecordData]:
    async for one in store.database["record_data"].find():
        yield DBRecordData.from_mongo(one)
