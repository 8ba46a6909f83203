"""Episodes whose score comes later: what they leave, what settlement makes of them, and what never waits."""

import asyncio
import re
from typing import Any

import pytest

from sampler import AsyncSampler, Score, ScoreComesLater
from sampler.core.episode.episode import play
from scripts.bench.sampler_chat import Chat
from shared.documents import Feedback, TaskPayload
from shared.documents.states import DataStatus, RecordStatus, SlotStatus, TaskStatus
from shared.episodes.feedback import give_feedback
from shared.store import Store
from tandem.audit.run import audit
from tests.late_commands import everything
from tests.sampler.episodes import ended, resources, says
from tests.sampler.gateway.agents import ScriptedEngine, played
from tests.sampler.gateway.test_agent_sampler import ask
from tests.sampler.settling import settle_next
from tests.shared.builders import claim, import_tasks, let_time_pass, make_task

ANSWER = "<answer>4</answer>"
DAY_S = 86_400.0


class Later(Chat):
    """Says itself that its score comes later."""

    otherwise: Score | None = None
    deadline_s: float | None = 3600.0

    async def evaluate_record(self) -> Score:
        raise ScoreComesLater(self.deadline_s, self.otherwise)


class LaterOrHalf(Later):
    otherwise = Score(0.5, {"why": "by default"})


class Unlimited(Later):
    deadline_s = None


class Backwards(Later):
    deadline_s = -1.0


class Odd(Later):
    otherwise = 0.5  # type: ignore[assignment]  # of a class that declares none


class Halved(Chat):
    async def evaluate_record(self) -> Score:
        return Score((await super().evaluate_record()).value / 2)


async def play_all(store: Store, kind: type[AsyncSampler], **config: Any) -> list[AsyncSampler]:
    samplers: list[AsyncSampler] = []
    async with resources(store, says(ANSWER), **config) as shared:
        while (got := await claim(store)) is not None:
            samplers.append(kind(shared, got))
            await play(samplers[-1])
        await settle_all(store, samplers[0])
    return samplers


async def settle_all(store: Store, sampler: AsyncSampler) -> None:
    while await settle_next(store, "s", sampler.config) is not None:
        pass


@pytest.mark.parametrize(
    ("kind", "config", "without"),
    [
        (Chat, {"feedback_deadline_s": DAY_S}, 1.0),
        (Chat, {"feedback_deadline_s": DAY_S, "feedback_missing": "abandon"}, None),
        (Chat, {"feedback_deadline_s": DAY_S, "feedback_missing": "abandon", "default_scorer": "no_such"}, None),
        (Halved, {"feedback_deadline_s": DAY_S}, 0.5),
        (Halved, {"feedback_deadline_s": DAY_S, "feedback_missing": "abandon"}, None),
        (Later, {}, None),
        (LaterOrHalf, {}, 0.5),
        (Unlimited, {"feedback_deadline_s": DAY_S}, None),
    ],
)
async def test_an_episode_waits_for_feedback_and_then_its_group_is_training_data(
    store: Store, kind: type[AsyncSampler], config: dict[str, Any], without: float | None
) -> None:
    await import_tasks(store, 1, num_generations=2)
    first, second = await play_all(store, kind, **config)
    record, slot, _ = await ended(store, first)
    assert (record.status, slot.status, record.score) == (RecordStatus.COMPLETED, SlotStatus.WAITING, None)
    assert slot.score_without_feedback == without
    assert (record.without_feedback is None) == (without is None)
    assert first.episode.status is RecordStatus.COMPLETED
    await give_feedback(store, record.id, 0.0)
    await settle_all(store, first)
    assert not await store.data.find({}), "its group is not whole"
    await give_feedback(store, second.claim.record_id, 1.0, comment="well done")
    await settle_all(store, first)
    assert [(d.reward, d.status) for d in await store.data.find({})] == [
        (0.0, DataStatus.READY),
        (1.0, DataStatus.READY),
    ]
    record, _, _ = await ended(store, second)
    assert (record.status, record.reward_details["feedback"][0]["comment"]) == (RecordStatus.READY, "well done")
    report = await audit(store)
    assert report.ok, report


@pytest.mark.parametrize("kind", [LaterOrHalf, Later])
async def test_without_feedback_the_deadline_ends_the_wait_and_the_group_is_settled(
    store: Store, kind: type[AsyncSampler]
) -> None:
    await import_tasks(store, 1, num_generations=3)
    first, second, third = await play_all(store, kind)
    for sampler, score in ((first, 0.0), (second, 1.0)):
        await give_feedback(store, sampler.claim.record_id, score)
    await let_time_pass(store)
    await settle_all(store, first)
    task = await store.tasks.get(first.task.id)
    assert task is not None
    last = 0.5 if kind is LaterOrHalf else None
    assert (task.status, task.scores) == (TaskStatus.SETTLED, [0.0, 1.0, last])
    record, slot, _ = await ended(store, third)
    if last is None:
        assert (record.status, slot.status) == (RecordStatus.ABANDONED, SlotStatus.FAILED)
        assert record.reason == slot.error == "no feedback came before the deadline"
    else:
        assert (record.status, record.score) == (RecordStatus.READY, 0.5)
        assert record.reward_details["why"] == "by default"
    report = await audit(store)
    assert report.ok, report


async def test_settlement_writes_the_record_of_feedback_whose_process_was_killed(store: Store) -> None:
    """The turn's score, too: it is a part of what the settlement reads."""
    await import_tasks(store, 1, num_generations=2)
    first, second = await play_all(store, Later)
    for sampler, score in ((first, 0.0), (second, 1.0)):
        for turn in (0, None):
            feedback = Feedback(score=score, turn=turn)
            assert await store.feedback.give(sampler.claim.record_id, feedback) is not None  # and no `write_scores`
    await settle_all(store, first)
    record, _, dispatches = await ended(store, second)
    assert (record.status, record.score, dispatches[0].score) == (RecordStatus.READY, 1.0, 1.0)
    report = await audit(store)
    assert report.ok, report
    before = await everything(store.database)
    await give_feedback(store, record.id, 1.0)
    assert await everything(store.database) == before


async def test_held_out_episodes_do_not_wait(store: Store) -> None:
    await store.tasks.insert_new([make_task(k, split="eval", num_generations=1) for k in range(3)])
    async with resources(store, says(ANSWER), feedback_deadline_s=DAY_S, feedback_missing="abandon") as shared:
        assert await play(Chat(shared, await claim(store, split="eval"))) == 1.0
        assert await play(LaterOrHalf(shared, await claim(store, split="eval"))) == 0.5
        never = Later(shared, await claim(store, split="eval"))
        assert await play(never) is None
    record, slot, _ = await ended(store, never)
    assert (slot.status, record.termination) == (SlotStatus.FAILED, "misconfigured")
    assert "only training waits for feedback" in (record.error or "")


@pytest.mark.parametrize(("own", "status"), [(0, SlotStatus.SCORED), (60, SlotStatus.WAITING)])
async def test_a_task_has_a_deadline_of_its_own(store: Store, own: float, status: SlotStatus) -> None:
    payload = TaskPayload(query="2+2?", answer="4", feedback_deadline_s=own)
    await store.tasks.insert_new([make_task(0, num_generations=1).model_copy(update={"payload": payload})])
    (sampler,) = await play_all(store, Chat, feedback_deadline_s=DAY_S)
    _, slot, _ = await ended(store, sampler)
    assert slot.status is status
    task = await store.tasks.get(sampler.task.id)
    assert task is not None
    if own:
        assert record_s(task.waiting_until, await store.questions.server_time()) < 61


def record_s(until: Any, now: Any) -> float:
    return float((until - now).total_seconds())


async def test_a_later_score_without_a_deadline_is_a_wrong_setting_and_a_wrong_one_a_mistake(store: Store) -> None:
    await import_tasks(store, 3, num_generations=1)
    async with resources(store, says(ANSWER)) as shared:
        sampler = Unlimited(shared, await claim(store))
        assert await play(sampler) is None
        record, slot, _ = await ended(store, sampler)
        assert (slot.status, record.termination) == (SlotStatus.FAILED, "misconfigured")
        assert "the setting feedback_deadline_s" in (record.error or "")
        for kind, words in ((Backwards, r"deadline_s is -1.0; expected up to"), (Odd, r"otherwise is 0.5; expected a")):
            wrong = kind(shared, await claim(store))
            assert await play(wrong) is None
            record, _, _ = await ended(store, wrong)
            assert re.search(words, record.error or "")
            await let_time_pass(store)


async def test_a_number_of_the_agent_is_final_and_its_text_waits(store: Store) -> None:
    for returned, status in ((0.25, SlotStatus.SCORED), ("4", SlotStatus.WAITING), (None, SlotStatus.WAITING)):
        await store.database["tasks"].delete_many({})
        await store.database["records"].delete_many({})
        await store.database["dispatched_sampling_tasks"].delete_many({})

        async def agent(task: Any, returned: Any = returned) -> Any:
            await ask(task)
            return returned

        config: dict[str, Any] = {"feedback_deadline_s": DAY_S, "feedback_missing": "abandon"}
        record, slot, _ = await played(store, ScriptedEngine([ANSWER]), agent, **config)
        assert slot.status is status
        assert (record.score, record.without_feedback) == (0.25 if returned == 0.25 else None, None)
        assert record.answer == (None if returned == 0.25 else "4")


async def test_a_cancellation_after_the_wait_began_leaves_the_episode_waiting(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acknowledgement did not come before the sampler was told to stop."""
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, says(ANSWER)) as shared:
        sampler = Later(shared, await claim(store))
        await_feedback = store.tasks.await_feedback

        async def unacknowledged(*args: Any, **kwargs: Any) -> bool:
            await await_feedback(*args, **kwargs)
            playing.cancel()
            await asyncio.sleep(0)
            raise AssertionError("it is cancelled before")

        monkeypatch.setattr(store.tasks, "await_feedback", unacknowledged)
        playing = asyncio.create_task(play(sampler))
        with pytest.raises(asyncio.CancelledError):
            await playing
    record, slot, _ = await ended(store, sampler)
    assert (record.status, slot.status) == (RecordStatus.COMPLETED, SlotStatus.WAITING)
    await give_feedback(store, record.id, 1.0)


async def test_an_episode_that_lost_its_lease_does_not_wait(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, says(ANSWER)) as shared:
        lost = Later(shared, await claim(store, lease_s=0.0))
        again = Later(shared, await claim(store))
        assert await play(lost) is None
        assert await play(again) is None
    record, slot, _ = await ended(store, again)
    assert (slot.status, slot.record_id) == (SlotStatus.WAITING, record.id)
    assert (await ended(store, lost))[0].status is RecordStatus.ABANDONED
