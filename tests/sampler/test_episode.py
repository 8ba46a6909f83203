"""Every way an episode can end, and its documents afterwards: an infrastructure failure is never a reward."""

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from sampler.core.episode.episode import play
from sampler.core.episode.sampler import AsyncSampler, Turn
from sampler.core.retry_delay import retry_delay_s
from sampler.scorers import Score, ScoringRequest, register_scorer
from scripts.bench.sampler_chat import Chat
from shared.documents import Claim, TaskPayload
from shared.documents.states import DispatchStatus, RecordStatus, SlotStatus, TaskStatus, Termination
from shared.store import Store
from tests.sampler.episodes import ended, resources, says
from tests.shared.builders import claim, import_tasks, let_time_pass, make_task

ANSWER = "<answer>4</answer>"


@register_scorer("tests_crashing")
async def crashing(request: ScoringRequest) -> Score:
    raise ZeroDivisionError("the judge is ill")


@register_scorer("tests_nan")
async def not_a_number(request: ScoringRequest) -> Score:
    return Score(float("nan"))


async def down(request: httpx.Request) -> httpx.Response:
    return httpx.Response(500, json={"error": {"message": "out of memory"}})


async def hangs(request: httpx.Request) -> httpx.Response:
    await asyncio.sleep(0 if request.url.path == "/abort_request" else 3600)
    return httpx.Response(200)


class Slow(AsyncSampler):
    async def run(self) -> Termination:
        await asyncio.sleep(3600)
        return Termination.ANSWERED


class Walk(AsyncSampler):
    """Two turns, of which `run` scores the first and `evaluate_record` the last: 0.25 + 0.75 = 1."""

    async def run(self) -> Termination:
        messages = [{"role": "user", "content": "Where to?"}]
        self.turns: list[Turn] = []
        for _ in range(2):
            turn = await self.create_chat_completions(messages)
            assert turn is not None
            self.turns.append(turn)
        self.score_turn(self.turns[0], 0.5)
        self.score_turn(self.turns[0], 0.25)
        return Termination.ANSWERED

    async def evaluate_record(self) -> Score:
        self.score_turn(self.turns[1], 0.75)
        return Score(1.0)


class Level(BaseModel):
    level: int


class Measured(Chat):
    """Chats if its task has a level; adds two metrics, one of them twice."""

    async def run(self) -> Termination:
        self.add_metric("level", self.own_payload(Level).level)
        self.add_metric("turns", 0)
        return await super().run()

    async def evaluate_record(self) -> Score:
        self.add_metric("turns", len(self.episode.dispatches))
        return Score(1.0)


class Hasty(AsyncSampler):
    async def run(self) -> Termination:
        async with asyncio.timeout(0.001):
            await asyncio.sleep(3600)
        return Termination.ANSWERED


# ---------------------------------------------------------------------- normal ends


async def test_an_episode_that_ends_normally_is_scored_and_every_request_is_closed(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, says(ANSWER)) as shared:
        sampler = Chat(shared, await claim(store))
        assert await play(sampler) == 1.0
    record, slot, dispatches = await ended(store, sampler)
    assert (record.status, record.score, record.termination) == (RecordStatus.SCORED, 1.0, "answered")
    assert (slot.status, slot.score, slot.failures) == (SlotStatus.SCORED, 1.0, 0)
    assert [d.status for d in dispatches] == [DispatchStatus.COMPLETED] * 2
    assert all(d.finished_at is not None and d.created_at is not None for d in dispatches)
    assert record.traj == [d.id for d in dispatches]


async def test_a_turn_keeps_the_last_score_that_the_sampler_gave_it(store: Store) -> None:
    await import_tasks(store, 1, num_generations=2)
    async with resources(store, says(ANSWER)) as shared:
        first, second = Walk(shared, await claim(store)), Walk(shared, await claim(store))
        assert await play(first) == 1.0
        record, _, dispatches = await ended(store, first)
        assert [d.score for d in dispatches] == [0.25, 0.75]
        assert record.reward_details == {"scorer": f"{__name__}:Walk.evaluate_record"}
        with pytest.raises(ValueError, match="for a turn of this episode"):
            second.score_turn(first.turns[0], 1.0)
        with pytest.raises(ValueError, match="expected a finite number"):
            first.score_turn(first.turns[0], float("nan"))


async def test_metrics_that_a_sampler_adds_are_stored_with_the_record(store: Store) -> None:
    payload = TaskPayload(query="2+2?", metadata={"level": 3})
    await store.tasks.insert_new([make_task(0, num_generations=1).model_copy(update={"payload": payload})])
    async with resources(store, says(ANSWER)) as shared:
        sampler = Measured(shared, await claim(store))
        for name, value in (("a.b", 1.0), ("", 1.0), ("level", float("nan"))):
            with pytest.raises(ValueError, match="finite number"):
                sampler.add_metric(name, value)
        await play(sampler)
    record, _, _ = await ended(store, sampler)
    assert record.metrics == {"level": 3.0, "turns": 2.0}
    assert await store.questions.own_metrics("train") == {"test": {"level": 3.0, "turns": 2.0}}


async def test_metadata_that_does_not_fit_the_sampler_fails_the_slot_and_names_the_field(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, says(ANSWER), max_failures=1) as shared:
        sampler = Measured(shared, await claim(store))
        assert await play(sampler) is None
    _, slot, _ = await ended(store, sampler)
    assert (slot.status, slot.score) == (SlotStatus.FAILED, None)
    assert slot.error == 'ConfigError: task main:train:0:t0: "metadata.level" is missing; Level expects it'


async def test_a_request_is_visible_while_it_runs_and_the_one_before_it_is_closed(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    seen: list[list[str]] = []
    reply = says(ANSWER)

    async def looking(request: httpx.Request) -> httpx.Response:
        found = await store.database["dispatched_sampling_tasks"].find().sort("_id", 1).to_list()
        seen.append([d["status"] for d in found])
        return await reply(request)

    async with resources(store, looking) as shared:
        await play(Chat(shared, await claim(store)))
    assert seen == [["running"], ["completed", "running"]]


async def test_a_wrong_answer_scores_0_and_is_not_a_failure(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, says("no idea")) as shared:
        sampler = Chat(shared, await claim(store))
        assert await play(sampler) == 0.0
    _, slot, _ = await ended(store, sampler)
    assert (slot.status, slot.score) == (SlotStatus.SCORED, 0.0)


# ---------------------------------------------------------------------- infrastructure


def infrastructure(**changes: Any) -> dict[str, Any]:
    return {"sampler": Chat, "engine": says(ANSWER), "payload": {}, "config": {}} | changes


FAILURES = {
    "an engine that always answers 500": (infrastructure(engine=down), Termination.ENGINE_FAILURE, "out of memory"),
    "an engine that hangs": (
        infrastructure(engine=hangs, config={"engine_timeout_s": 0.05}),
        Termination.ENGINE_FAILURE,
        "no answer within 0.05 s",
    ),
    "a scorer that crashes": (
        infrastructure(payload={"scorer": "tests_crashing"}),
        Termination.SCORER_FAILURE,
        "the judge is ill",
    ),
    "a scorer that returns no number": (
        infrastructure(payload={"scorer": "tests_nan"}),
        Termination.SCORER_FAILURE,
        "nan",
    ),
    "a time-out of the sampler's own": (
        infrastructure(sampler=Hasty),
        Termination.TIME_LIMIT,
        "in run: async with asyncio.timeout(0.001):",
    ),
    "an episode that takes too long": (
        infrastructure(sampler=Slow, config={"episode_timeout_s": 0.05}),
        Termination.TIME_LIMIT,
        "TimeoutError",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_an_infrastructure_failure_is_retried_later_then_failed_and_never_scored(store: Store, name: str) -> None:
    given, termination, message = FAILURES[name]
    payload = TaskPayload(**({"query": "2+2?", "answer": "4"} | given["payload"]))
    await store.tasks.insert_new([make_task(0, num_generations=1).model_copy(update={"payload": payload})])
    config = {"retry_delay_s": 60, "max_failures": 2} | given["config"]
    async with resources(store, given["engine"], **config) as shared:
        first = given["sampler"](shared, await claim(store, max_failures=2))
        assert await play(first) is None
        record, slot, dispatches = await ended(store, first)
        assert (record.status, record.score) == (RecordStatus.FAILED, None)
        assert record.termination == termination
        assert message in (record.error or "")
        assert (slot.status, slot.score, slot.failures) == (SlotStatus.OPEN, None, 1)
        assert not [d for d in dispatches if d.status is DispatchStatus.RUNNING]
        assert await claim(store) is None, "not yet"
        await let_time_pass(store)
        again = given["sampler"](shared, await claim(store, max_failures=2))
        assert await play(again) is None
        _, slot, _ = await ended(store, again)
    assert (slot.status, slot.score, slot.failures) == (SlotStatus.FAILED, None, 2)
    task = await store.tasks.get(again.claim.task.id)
    assert task is not None
    assert task.status is TaskStatus.COMPLETED


async def test_a_turn_sends_a_bounded_number_of_requests_to_an_engine_that_always_fails(store: Store) -> None:
    """As many as the pool's `max_failures`."""
    await import_tasks(store, 1, num_generations=1)
    asked: list[str] = []

    async def counting(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return await down(request)

    async with resources(store, counting) as shared:
        await play(Chat(shared, await claim(store)))
    assert asked.count("/generate") == 3


async def test_an_evaluation_by_other_weights_than_requested_is_not_scored(store: Store) -> None:
    await store.tasks.insert_new([make_task(0, num_generations=1, split="eval", at_version=3)])
    async with resources(store, says(ANSWER, version="4")) as shared:  # registered as version 3
        sampler = Chat(shared, await claim(store, split="eval", served_versions=[3]))
        assert await play(sampler) is None
    record, slot, _ = await ended(store, sampler)
    assert (record.status, slot.status, slot.score) == (RecordStatus.FAILED, SlotStatus.OPEN, None)
    assert "sampled by versions [4]; expected 3 alone" in (record.error or "")


async def test_a_prompt_without_room_ends_the_episode_without_a_request(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, says(ANSWER), max_prompt_tokens=1) as shared:
        sampler = Chat(shared, await claim(store))
        assert await play(sampler) == 0.0
    record, _, dispatches = await ended(store, sampler)
    assert (record.termination, dispatches) == (Termination.LENGTH_LIMIT, [])


async def test_the_delay_doubles_with_every_failure_of_the_slot_up_to_five_minutes(store: Store) -> None:
    async with resources(store, down, retry_delay_s=2.0) as shared:
        assert [retry_delay_s(shared.config, n) for n in (0, 1, 3, 20)] == [2.0, 4.0, 16.0, 300.0]
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, down, retry_delay_s=200.0) as shared:
        sampler = Chat(shared, await claim(store))
        await play(sampler)
    _, slot, _ = await ended(store, sampler)
    wait = slot.free_at - await store.questions.server_time()
    assert timedelta(seconds=100) < wait <= timedelta(seconds=200)


# ---------------------------------------------------------------------- cut off


async def in_flight(store: Store) -> bool:
    return await store.database["dispatched_sampling_tasks"].count_documents({"status": "running"}) > 0


async def start(store: Store, shared: Any, got: Any) -> tuple[AsyncSampler, "asyncio.Task[float | None]"]:
    sampler = Chat(shared, got)
    task = asyncio.create_task(play(sampler))
    while not await in_flight(store):  # noqa: ASYNC110 - the database has no event to wait for
        await asyncio.sleep(0.01)
    return sampler, task


async def test_a_cancelled_episode_releases_its_slot_at_once_without_counting_a_failure(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, hangs) as shared:
        sampler, task = await start(store, shared, await claim(store))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    record, slot, [dispatch] = await ended(store, sampler)
    assert (record.status, record.termination) == (RecordStatus.ABANDONED, Termination.CANCELLED)
    assert (slot.status, slot.failures, slot.score) == (SlotStatus.OPEN, 0, None)
    assert dispatch.status is DispatchStatus.CANCELLED
    assert await claim(store) is not None


async def test_a_cancellation_between_the_score_and_its_acknowledgement_leaves_the_record_scored(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, finish_slot = asyncio.Event(), store.tasks.finish_slot

    async def unacknowledged(got: Claim, score: float, *group_scorers: Any) -> bool:
        await finish_slot(got, score, *group_scorers)
        written.set()
        await asyncio.sleep(3600)
        raise AssertionError("cancelled before")

    monkeypatch.setattr(store.tasks, "finish_slot", unacknowledged)
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, says(ANSWER)) as shared:
        sampler = Chat(shared, await claim(store))
        task = asyncio.create_task(play(sampler))
        await asyncio.wait_for(written.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    record, slot, dispatches = await ended(store, sampler)
    assert (record.status, slot.status, slot.record_id) == (RecordStatus.SCORED, SlotStatus.SCORED, record.id)
    assert record.score == slot.score is not None
    assert {dispatch.status for dispatch in dispatches} == {DispatchStatus.COMPLETED}


async def test_an_episode_whose_lease_was_taken_writes_nothing_that_counts(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    overtaken = await claim(store, lease_s=0.0)
    successor = await claim(store, "successor")
    async with resources(store, says(ANSWER)) as shared:
        sampler = Chat(shared, overtaken)
        assert await play(sampler) is None
    record, slot, _ = await ended(store, sampler)
    assert record.status is RecordStatus.ABANDONED
    assert (slot.status, slot.attempt, slot.score) == (SlotStatus.LEASED, successor.attempt, None)
    await store.tasks.finish_slot(successor, 0.5)
    task = await store.tasks.get(successor.task.id)
    assert task is not None
    assert [s.score for s in task.slots] == [0.5]
