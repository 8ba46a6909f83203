"""Groups that are scored as a whole: once, by any sampler, never by a number in place of a failure."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from sampler.core.scorers import registry
from sampler.core.service.settling import Settling
from sampler.core.settlement import group_scoring
from sampler.core.settlement.current_rules import CurrentRules
from sampler.core.settlement.settle import claim_next
from sampler.scorers import GroupRequest, register_group_scorer
from shared.documents import Task
from shared.documents.scoring import GroupScore, WeightedScorer
from shared.documents.states import RecordStatus, TaskStatus
from shared.store import Store
from tandem.audit.run import audit
from tests.sampler.groups import COLLECTIONS
from tests.sampler.running import running_sampler, until
from tests.sampler.scored_groups import ONE, config, data_of, leased, needing_group, scoring
from tests.sampler.settling import settle, settle_next

OPTIONS: dict[str, Any] = {"poll_s": 0.02, "heartbeat_s": 0.05}


pytestmark = pytest.mark.usefixtures("own_scorers")


async def the_documents(store: Store) -> dict[str, Any]:
    """All of them, without times and without who wrote them."""
    left_out = ("settled_at", "free_at", "settler", "created_at", "scoring", "completed_at", "finished_at")
    found = {name: [one async for one in store.database[name].find().sort("_id")] for name in COLLECTIONS}
    for one in (one for documents in found.values() for one in documents):
        for name in left_out:
            one.pop(name, None)
    return found


async def test_a_group_scorers_values_are_part_of_the_score_of_slots_records_and_data(
    store: Store, asked: list[GroupRequest]
) -> None:
    """An episode that failed is not among them."""
    task = await needing_group(store, [1.0, None, 0.0])
    one = scoring(store)
    assert one.awaits(task)
    await one.score(await leased(store))
    (request,) = asked
    assert [(episode.score, bool(episode.reply)) for episode in request.episodes] == [(1.0, True), (0.0, True)]
    assert [message["role"] for message in request.episodes[0].messages][-1] == "assistant"
    found = await store.tasks.get(task.id)
    assert found is not None
    assert (found.status, [slot.score for slot in found.slots]) == (TaskStatus.SETTLED, [1.0, None, 0.125])
    assert found.group_scores[0].values == [0.0, None, 0.25]
    assert found.scores == [1.0, None, 0.125]
    record = await store.records.get(found.slots[2].record_id or "")
    assert record is not None
    assert (record.score, record.metrics["score_by_length"]) == (0.125, 0.25)
    assert record.reward_details["group_scores"] == [
        {"scorer": "by_length", "value": 0.25, "weight": 0.5, "reason": "place 1"}
    ]
    assert sorted([one.reward async for one in data_of(store)]) == [0.125, 1.0]
    assert sum(one.violations for one in (await audit(store)).results.values()) == 0
    assert not one.awaits(found)


async def test_two_samplers_that_score_the_same_group_leave_the_documents_of_the_first(store: Store) -> None:
    """A judge says something else every time."""
    calls: list[float] = []
    both = asyncio.Event()

    @register_group_scorer("by_length")
    async def moody(request: GroupRequest) -> list[float]:
        calls.append(value := len(calls) / 10)
        if len(calls) == 2:
            both.set()
        await both.wait()
        return [value] * len(request.episodes)

    task = await needing_group(store, [1.0, 0.0])
    first = asyncio.create_task(scoring(store, "a").score(await leased(store, "a")))
    await until(lambda: _count(calls), lambda n: n == 1)
    await store.database["tasks"].update_one({"_id": task.id}, {"$set": {"free_at": task.free_at}})  # its lease is over
    second = asyncio.create_task(scoring(store, "b").score(await leased(store, "b")))
    await asyncio.gather(first, second)
    found = await store.tasks.get(task.id)
    assert found is not None
    (kept,) = found.group_scores
    assert kept.values in ([0.0, 0.0], [0.1, 0.1])
    assert [slot.score for slot in found.slots] == [1.0 + 0.5 * (kept.values[0] or 0), 0.5 * (kept.values[0] or 0)]
    assert sum(one.violations for one in (await audit(store)).results.values()) == 0


async def test_scores_of_an_attempt_that_is_over_change_nothing(store: Store) -> None:
    """Its group is scored by the next one, or was given up."""
    task = await needing_group(store, [1.0, 0.0])
    one = GroupScore(scorer="s", metric="score_s", weight=1.0, values=[0.5, 0.25], reasons=["x", None])
    verbs = store.group_scores
    assert await verbs.begin(await leased(store, "a"), "a") == 1
    await verbs.postpone(task.id, 1, "a", delay_s=0)
    assert await verbs.begin(await leased(store, "b"), "b") == 2
    assert await verbs.keep(task, 1, [one], {0: 1.5, 1: 0.25}) is None
    found = await verbs.postpone(task.id, 2, "b", delay_s=0, error="no judge", max_failures=1)
    assert found is not None
    assert found.scoring is not None
    assert found.scoring.given_up
    assert await verbs.keep(task, 2, [one], {0: 1.5, 1: 0.25}) is None
    assert await verbs.begin(await leased(store, "c"), "c") is None
    after = await store.tasks.get(task.id)
    assert after is not None
    assert ([slot.score for slot in after.slots], after.group_scores) == ([1.0, 0.0], [])


async def _count(calls: Sequence[Any]) -> int:
    return len(calls)


@pytest.mark.parametrize("verb", ["begin", "keep", "write_records"])
async def test_a_sampler_that_ends_at_any_command_leaves_the_same_documents(
    store: Store, asked: list[GroupRequest], verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before or after the command: another sampler takes over when the lease is over."""
    task = await needing_group(store, [1.0, 0.0, 0.5])
    before = {name: [one async for one in store.database[name].find()] for name in COLLECTIONS}
    await scoring(store).score(await leased(store))
    wanted = await the_documents(store)
    for is_after in (False, True):
        for name, documents in before.items():
            await store.database[name].delete_many({})
            if documents:
                await store.database[name].insert_many(documents)
        await _ends_at(store, verb, is_after, monkeypatch)
        await store.database["tasks"].update_one({"_id": task.id}, {"$set": {"free_at": task.free_at}})
        found = await store.tasks.claim_settlement("b", policy="main", lease_s=60, left=[])
        assert found is not None
        one = scoring(store, "b")
        await (one.score(found) if one.awaits(found) else settle(store, found, config(store)))
        assert await the_documents(store) == wanted


async def _ends_at(store: Store, verb: str, is_after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    own = getattr(store.group_scores, verb)

    async def dies(*arguments: Any, **options: Any) -> Any:
        if is_after:
            await own(*arguments, **options)
        work.cancel()  # as the end of its process does
        await asyncio.sleep(0)
        raise asyncio.CancelledError  # of a command in a task of its own

    with monkeypatch.context() as patch:
        patch.setattr(store.group_scores, verb, dies)
        work = asyncio.create_task(scoring(store).score(await leased(store)))
        with pytest.raises(asyncio.CancelledError):
            await work


async def test_a_judge_that_is_down_delays_the_group_and_at_last_abandons_it_without_a_number(store: Store) -> None:
    @register_group_scorer("by_length")
    async def away(request: GroupRequest) -> list[float]:
        raise ConnectionError("no judge")

    task = await needing_group(store, [1.0, 0.0])
    one = scoring(store, retry_delay_s=0.001, max_failures=2)
    for failures in (1, 2):
        await one.score(await leased(store))
        assert len(one.alarms()) == (failures == 1)
        found = await until(lambda: store.tasks.get(task.id), lambda one: one is not None)
        assert found is not None
        assert found.scoring is not None
        assert found.scoring.failures == failures
        assert [slot.score for slot in found.slots] == [1.0, 0.0]
        await asyncio.sleep(0.05)  # the delay before the next attempt
    assert found.status is TaskStatus.ABANDONED
    assert found.outcome == (
        "abandoned: its group scorer failed 2 times: scorer 'by_length' crashed: ConnectionError: no judge; at "
        + found.outcome.split("; at ")[1]
    )
    records = [await store.records.get(slot.record_id or "") for slot in found.slots]
    assert {one.status for one in records if one is not None} == {RecordStatus.ABANDONED}
    assert await store.database["record_data"].count_documents({}) == 0
    assert sum(one.violations for one in (await audit(store)).results.values()) == 0


async def test_a_sampler_that_is_stopped_frees_the_group_at_once(store: Store) -> None:
    @register_group_scorer("by_length")
    async def slow(request: GroupRequest) -> list[float]:
        await asyncio.sleep(3600)  # longer than the test
        return []

    task = await needing_group(store, [1.0, 0.0])
    working = asyncio.create_task(scoring(store).score(await leased(store)))
    await until(lambda: store.tasks.get(task.id), lambda one: one is not None and one.scoring is not None)
    assert await store.tasks.claim_settlement("b", policy="main", lease_s=60, left=[]) is None
    working.cancel()
    await asyncio.wait([working])
    found = await store.tasks.claim_settlement("b", policy="main", lease_s=60, left=[])
    assert found is not None
    assert found.scoring is not None
    assert found.scoring.failures == 0


async def test_stopped_between_the_write_and_the_answer_of_an_attempt_it_frees_the_group_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = store.group_scores.begin, asyncio.Event()

    async def answered_late(task: Task, settler: str) -> int | None:
        attempt = await real(task, settler)
        written.set()
        await asyncio.sleep(0.2)  # the answer is on its way
        return attempt

    monkeypatch.setattr(store.group_scores, "begin", answered_late)
    await needing_group(store, [1.0, 0.0])
    working = asyncio.create_task(scoring(store).score(await leased(store)))
    await written.wait()
    working.cancel()
    await asyncio.wait([working])
    assert working.cancelled()
    assert await store.tasks.claim_settlement("b", policy="main", lease_s=60, left=[]) is not None


async def test_a_group_whose_scorer_is_unknown_here_is_left_to_another_sampler(store: Store, asked: list[Any]) -> None:
    """After the first one no other is claimed; this sampler's own default scorers do not matter."""
    task = await needing_group(store, [1.0, 0.0], ONE, WeightedScorer(name="tests_elsewhere"))
    one = scoring(store, default_scorers=[WeightedScorer(name="exact_match")])
    assert one.awaits(task)
    await one.score(await leased(store))
    assert one.alarms()[0].startswith(
        "group main:train:0:t0 and others like it wait for another sampler: scorer 'tests_els"
    )
    assert one.left == ["tests_elsewhere"]
    assert await claim_next(store, "w", "main", one.left) is None
    assert await settle_next(store, "w", config(store)) is None, "never settled without its group scores"
    register_group_scorer("tests_elsewhere")(lambda episodes: [1.0] * len(episodes))
    await scoring(store, "b").score(await leased(store, "b"))
    found = await store.tasks.get(task.id)
    assert found is not None
    assert [slot.score for slot in found.slots] == [2.0, 1.125]


async def test_groups_without_group_scorers_are_settled_while_all_places_are_taken_and_a_drain_claims_none(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_scoring, "MOST_AT_ONCE", 0)
    task = await needing_group(store, [1.0, 0.0])
    rules = CurrentRules(store, config(store), "w")
    await rules.begin()
    settling = Settling(store, "w", config(store), rules, None)
    async with asyncio.TaskGroup() as group:
        await settling.settle_all(group)
        assert settling.settled == 0
        await store.database["tasks"].update_one(
            {"_id": task.id}, {"$unset": {"slots.0.group_scorers": 1, "slots.1.group_scorers": 1}}
        )
        await settling.settle_all(group)
    assert settling.settled == 1
    other = await store.tasks.get(task.id)
    assert other is not None
    assert other.status is TaskStatus.SETTLED


async def test_the_service_scores_groups_while_it_plays_and_a_bug_in_a_group_scorer_ends_it(store: Store) -> None:
    slow_may_end = asyncio.Event()

    @register_group_scorer("by_length")
    async def waits(request: GroupRequest) -> list[float]:
        if "t0" in request.episodes[0].record:
            await slow_may_end.wait()
        return [0.5] * len(request.episodes)

    from tests.shared.builders import import_tasks

    await import_tasks(store, 3, num_generations=2)
    scorers = [WeightedScorer(name="exact_match").model_dump(), ONE.model_dump()]
    async with running_sampler(store, **OPTIONS, default_scorers=scorers):
        await until(lambda: _statuses(store), lambda all_: all_.count(TaskStatus.SETTLED) == 2)
        assert (await _statuses(store)).count(TaskStatus.COMPLETED) == 1, "its group scorer takes its time"
        slow_may_end.set()
        await until(lambda: _statuses(store), lambda all_: all_.count(TaskStatus.SETTLED) == 3)

    registry._SCORERS.pop("by_length")

    @register_group_scorer("by_length")
    async def wrong(request: GroupRequest) -> list[float]:
        return []

    registry._SCORERS["by_length"].mistakes = registry.MAX_MISTAKES - 1
    await import_tasks(store, 4, num_generations=2)
    async with running_sampler(store, **OPTIONS, default_scorers=scorers, max_failures=1) as service:
        await until(lambda: _statuses(store), lambda all_: all_.count(TaskStatus.ABANDONED) == 1)
        assert not service.done()
    ended = await store.tasks.ended_of([f"main:train:0:t{n}" for n in range(4)])
    (outcome,) = [task.outcome or "" for task in ended if task.scoring is not None and task.scoring.given_up]
    assert "group scorer 'by_length' returned" in outcome


async def test_the_live_reward_leaves_out_episodes_that_only_their_group_scores_until_it_did(store: Store) -> None:
    may_score = asyncio.Event()

    @register_group_scorer("by_length")
    async def waits(request: GroupRequest) -> list[float]:
        await may_score.wait()
        return [0.75] * len(request.episodes)

    from tests.shared.builders import import_tasks

    async def told(name: str) -> Any:
        found = [one["stats"] async for one in store.database["workers"].find({"kind": "sampler"})]
        return found[0][name] if found else None

    await import_tasks(store, 1, num_generations=2)
    only = [WeightedScorer(name="by_length").model_dump()]
    async with running_sampler(store, **OPTIONS, default_scorers=only):
        await until(lambda: told("episodes"), lambda n: n == 2)
        assert await told("reward_mean") is None
        may_score.set()
        await until(lambda: told("reward_mean"), lambda mean: mean is not None)
        assert await told("reward_mean") == 0.75


async def _statuses(store: Store) -> list[TaskStatus]:
    return [TaskStatus(one["status"]) async for one in store.database["tasks"].find()]


async def test_held_out_groups_are_not_scored_and_a_held_out_task_needs_a_scorer_of_its_own(
    store: Store, asked: list[Any]
) -> None:
    from tests.shared.builders import make_task

    tasks = [make_task(seq, split="eval", num_generations=1) for seq in range(2)]
    payload = tasks[1].payload.model_copy(update={"scorers": [ONE]})
    await store.tasks.insert_new([tasks[0], tasks[1].model_copy(update={"payload": payload})])
    mixed = [WeightedScorer(name="exact_match").model_dump(), ONE.model_dump()]
    async with running_sampler(store, **OPTIONS, default_scorers=mixed):
        await until(lambda: _statuses(store), lambda all_: all_ == [TaskStatus.SETTLED] * 2)
    first, second = [await store.tasks.get(task.id) for task in tasks]
    assert first is not None
    assert second is not None
    assert (first.slots[0].score, asked) == (1.0, [])
    assert "by_length scores groups of training episodes; a task of split eval needs a scorer" in (
        second.slots[0].error or ""
    )


def test_the_lease_of_a_group_is_renewed_before_it_ends() -> None:
    assert 2 * group_scoring.RENEW_S < group_scoring.LEASE_S
