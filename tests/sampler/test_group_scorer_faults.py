"""Faults of group scorers and of a group's documents: none becomes a number, and none stops a sampler."""

from typing import Any

import pytest

from sampler.scorers import GroupRequest, Score, register_group_scorer
from shared.documents.scoring import GroupScore, WeightedScorer
from shared.documents.states import TaskStatus
from shared.store import Store
from tandem.audit.run import audit
from tests.sampler.scored_groups import config, data_of, leased, needing_group, scoring
from tests.sampler.settling import settle

pytestmark = pytest.mark.usefixtures("own_scorers")


async def test_a_record_that_cannot_be_read_is_left_out_and_the_others_get_their_groups_scores(
    store: Store, asked: list[GroupRequest]
) -> None:
    task = await needing_group(store, [1.0, 0.0, 0.5])
    await store.database["records"].update_one({"_id": task.slots[1].record_id}, {"$set": {"num_turns": "many"}})
    await scoring(store).score(await leased(store))
    assert [episode.score for episode in asked[0].episodes] == [1.0, 0.5]
    found = await store.tasks.get(task.id)
    assert found is not None
    assert (found.status, found.group_scores[0].values) == (TaskStatus.SETTLED, [0.0, None, 0.25])
    assert sorted([one.reward async for one in data_of(store)]) == [0.625, 1.0]


async def test_a_group_that_is_given_up_does_not_count_for_the_curriculum(store: Store) -> None:
    @register_group_scorer("by_length")
    async def away(request: GroupRequest) -> list[float]:
        raise ConnectionError("no judge")

    task = await needing_group(store, [0.0, 0.0])
    later = task.model_copy(
        update={
            "id": "main:train:1:t0",
            "epoch": 1,
            "seq": 1,
            "status": TaskStatus.CREATED,
            "slots": [],
            "payload": task.payload.model_copy(update={"min_pass_rate": 0.1}),
        }
    )
    await store.tasks.insert_new([later])
    await scoring(store, max_failures=1).score(await leased(store))
    after = await store.database["tasks"].find_one({"_id": later.id})
    assert after is not None
    assert after["status"] == "created"


@pytest.mark.parametrize(
    "given",
    [{"gpt-4.1_tokens": 12, "a..b": 1, "\0": 2, "$x": 3}, 3, ["a"], {"n": float("nan"), "t": "x", "big": 10**400}],
)
async def test_metrics_of_a_group_are_numbers_under_names_that_documents_take(store: Store, given: Any) -> None:
    @register_group_scorer("by_length")
    async def odd(request: GroupRequest) -> list[Score]:
        return [Score(1.0, {"group_metrics": given, "reason": "\ud800"}) for _ in request.episodes]

    task = await needing_group(store, [1.0, 0.0])
    await scoring(store, max_failures=1).score(await leased(store))
    found = await store.tasks.get(task.id)
    assert found is not None
    assert (found.status, len(found.group_scores)) == (TaskStatus.SETTLED, 1)
    record = await store.records.get(task.slots[0].record_id or "")
    assert record is not None
    assert all(name.replace("-", "").replace("_", "").isalnum() for name in record.metrics)


async def test_values_whose_sum_the_trainer_cannot_use_are_a_failure(store: Store) -> None:
    register_group_scorer("by_length")(lambda episodes: [1.5e19] * len(episodes))
    task = await needing_group(store, [1.0, 0.0], WeightedScorer(name="by_length", weight=10.0))
    await scoring(store, max_failures=1).score(await leased(store))
    found = await store.tasks.get(task.id)
    assert found is not None
    assert "is no usable score; expected a finite number" in (found.outcome or "")


async def test_group_scores_that_do_not_fit_the_slots_set_the_task_aside(store: Store, asked: list[Any]) -> None:
    task = await needing_group(store, [1.0, 0.0])
    await scoring(store).score(await leased(store))
    change = {"$set": {"group_scores.0.values": [1.0], "status": "completed", "free_at": task.free_at}}
    await store.database["tasks"].update_one({"_id": task.id}, change)
    assert await store.tasks.claim_settlement("w", policy="main", lease_s=60, left=[]) is None
    found = await store.database["tasks"].find_one({"_id": task.id})
    assert found is not None
    assert "group_scores of by_length: expected 2 values" in found["outcome"]


async def test_the_audit_knows_that_records_follow_their_groups_scores(store: Store, asked: list[Any]) -> None:
    task = await needing_group(store, [1.0, 0.0])
    one = GroupScore(scorer="s", metric="score_s", weight=1.0, values=[0.5, 0.25], reasons=["x", None])
    assert await store.group_scores.begin(await leased(store), "w") == 1
    kept = await store.group_scores.keep(task, 1, [one], {0: 1.5, 1: 0.25})
    assert kept is not None
    assert sum(each.violations for each in (await audit(store)).results.values()) == 0
    await settle(store, kept, config(store))
    assert sum(each.violations for each in (await audit(store)).results.values()) == 0
