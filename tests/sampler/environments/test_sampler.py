"""`EnvironmentSampler` against a real service: rewards, restarts, tools that change, metrics, ends, failures."""

import asyncio
import json
from collections.abc import Callable, Iterator

import pytest

from sampler.core.episode.episode import play
from sampler.environments import choosing
from sampler.environments.sampler import EnvironmentSampler
from shared.documents.states import BranchCause, DispatchStatus, RecordStatus, SlotStatus, Termination
from shared.store import Store
from tests.sampler.environments.playing import one_episode, registered, task_of, worlds
from tests.sampler.environments.services import Service, service
from tests.sampler.episodes import ended
from tests.shared.builders import claim


@pytest.fixture(scope="module")
def shared() -> Iterator[Service]:
    with service("--workers", "1") as found:
        yield found


def in_turn(*texts: str) -> Callable[[int], str]:
    return lambda number: texts[min(number, len(texts) - 1)]


async def test_every_step_is_its_turns_score_and_the_world_ends_the_episode(store: Store, shared: Service) -> None:
    await registered(store, shared.url, "guess")
    await store.tasks.insert_new([task_of(store, 0, "guess", 7)])
    async with worlds(store, in_turn("3", "4", "7")) as (resources, engine):
        sampler, score = await one_episode(store, resources)
        record, slot, dispatches = await ended(store, sampler)
        engine.check(record, dispatches)
    assert (score, slot.score, record.termination) == (0.5, 0.5, "answered")
    assert [dispatch.score for dispatch in dispatches] == [-0.25, -0.25, 1.0]
    assert record.metrics == {"tries": 1.0}
    assert record.reward_details["scorer"] == "environment:guess"
    assert record.reward_details["rewards"] == [-0.25, -0.25, 1.0]
    assert json.loads(record.reward_details["result"]) == {"digit": "7"}
    assert dispatches[1].messages == [{"role": "user", "content": "not 3"}]


async def test_a_restart_and_other_tools_keep_the_tokens_that_were_sampled(store: Store, shared: Service) -> None:
    await registered(store, shared.url, "changing")
    await store.tasks.insert_new([task_of(store, 0, "changing")])
    async with worlds(store, "reply {}".format) as (resources, engine):
        sampler, score = await one_episode(store, resources)
        record, _, dispatches = await ended(store, sampler)
        state = engine.check(record, dispatches)
    assert (score, record.termination) == (0.9, "answered"), "metrics.score is the episode's"
    assert [dispatch.score for dispatch in dispatches] == [0.0, 0.5, 0.0, 0.25]
    assert record.metrics == {"steps": 4.0}
    threads = [turn.thread for turn in state.turns]
    assert threads == [None, None, "tools-1", "tools-1"]
    hashes = [dispatch.tools_hash for dispatch in dispatches]
    assert hashes[0] == hashes[1] != hashes[2] == hashes[3]
    assert dispatches[3].branch_cause == BranchCause.CONTEXT_POLICY, "a system message is another history"
    last = state.prompt_of(3)
    for number in (1, 2):  # replies that the restarted history contains, with their own (uncommon) tokens
        reply = list(state.turns[number].output_ids)
        assert any(last[at : at + len(reply)] == reply for at in range(len(last)))


async def test_replies_of_the_same_text_keep_their_own_tokens_in_a_restarted_history(
    store: Store, shared: Service
) -> None:
    await registered(store, shared.url, "forgetful")
    await store.tasks.insert_new([task_of(store, 0, "forgetful")])
    async with worlds(store, in_turn("\n left", "left\n", "end")) as (resources, engine):
        sampler, score = await one_episode(store, resources)
        record, _, dispatches = await ended(store, sampler)
        state = engine.check(record, dispatches)
    assert score == 1
    last, at = state.prompt_of(2), 0
    for number in (0, 1):
        reply = list(state.turns[number].output_ids)
        at = next(k for k in range(at, len(last)) if last[k : k + len(reply)] == reply) + len(reply)
    assert len(record.metrics) == 100, "further ones are left out"
    assert "m" * 101 not in record.metrics


async def test_a_world_that_says_the_models_reply_as_its_own_is_a_failure(store: Store, shared: Service) -> None:
    await registered(store, shared.url, "forgetful")
    await store.tasks.insert_new([task_of(store, 0, "forgetful")])
    async with worlds(store, in_turn("echo")) as (resources, _):
        sampler, _ = await one_episode(store, resources)
        record, slot, _ = await ended(store, sampler)
    assert (record.termination, slot.failures) == ("environment_failure", 1)
    assert "the environment's messages repeat" in (record.error or "")


async def test_at_the_models_limit_a_world_without_a_reward_leaves_the_score_to_the_tasks_scorer(
    store: Store, shared: Service
) -> None:
    await registered(store, shared.url, "forgetful")
    scored = task_of(store, 0, "forgetful", answer="4", scorer="exact_match", max_turns=1)
    await store.tasks.insert_new([scored, task_of(store, 1, "forgetful", max_turns=1)])
    async with worlds(store, in_turn("<answer>4</answer>")) as (resources, _):
        _, score = await one_episode(store, resources)
        _, nothing = await one_episode(store, resources)
    assert (score, nothing) == (1.0, 0.0)


async def test_calls_go_to_the_world_and_their_results_are_kept_for_people(store: Store, shared: Service) -> None:
    await registered(store, shared.url, "called")
    await store.tasks.insert_new([task_of(store, 0, "called")])
    call = '<tool_call>\n{"name": "look", "arguments": {"at": "sky"}}\n</tool_call>'
    broken = '<tool_call>\n{"name": "look", "arg\n</tool_call>'
    async with worlds(store, in_turn(call, broken, "done")) as (resources, engine):
        sampler, score = await one_episode(store, resources)
        record, _, dispatches = await ended(store, sampler)
        engine.check(record, dispatches)
    assert (score, len(dispatches)) == (1.0, 3)
    assert dispatches[0].tool_calls[0].result == 'seen {"at": "sky"}'
    assert dispatches[2].messages[0]["role"] == "tool", (
        "a call that cannot be read is told to the model, not to the world"
    )
    assert record.termination == "answered"


async def test_at_the_models_own_limits_the_rewards_so_far_count_and_the_session_is_cancelled(
    store: Store, shared: Service
) -> None:
    await registered(store, shared.url, "guess")
    await store.tasks.insert_new([task_of(store, 0, "guess", 7, max_turns=2)])
    before = shared.health()["counts"].get("cancelled", 0)
    async with worlds(store, in_turn("3")) as (resources, _):
        sampler, score = await one_episode(store, resources)
        record, _, _ = await ended(store, sampler)
    assert (score, record.termination) == (-0.5, "turns_limit")
    assert (await shared.until(sessions=0))["counts"]["cancelled"] == before + 1


async def test_a_world_without_a_reward_is_scored_by_the_tasks_scorer_or_not_at_all(
    store: Store, shared: Service
) -> None:
    await registered(store, shared.url, "silent")
    scored = task_of(store, 0, "silent", answer="4", scorer="exact_match")
    await store.tasks.insert_new([scored, task_of(store, 1, "silent")])
    async with worlds(store, in_turn("<answer>4</answer>")) as (resources, _):
        _, score = await one_episode(store, resources)
        without, nothing = await one_episode(store, resources)
        record, slot, _ = await ended(store, without)
    assert (score, nothing) == (1.0, None)
    assert (record.status, record.termination) == (RecordStatus.FAILED, "environment_failure")
    assert (record.score, slot.score, slot.failures) == (None, None, 1)
    assert "without a reward or a score" in (record.error or "")


@pytest.mark.parametrize("said", ["raise", "die"])
async def test_a_world_that_breaks_is_a_failure_and_its_slot_is_played_again(
    store: Store, shared: Service, said: str
) -> None:
    await registered(store, shared.url, "guess")
    await store.tasks.insert_new([task_of(store, 0, "guess", 7)])
    async with worlds(store, in_turn("3", said)) as (resources, _):
        sampler, score = await one_episode(store, resources)
        record, slot, _ = await ended(store, sampler)
    assert (score, record.score, record.termination) == (None, None, Termination.ENVIRONMENT_FAILURE.value)
    assert (slot.status, slot.failures) == (SlotStatus.OPEN, 1)
    await shared.until(sessions=0)


async def test_a_task_that_the_world_refuses_fails_at_once_with_its_words(store: Store, shared: Service) -> None:
    await registered(store, shared.url, "guess")
    await store.tasks.insert_new([task_of(store, 0, "guess", -3)])
    async with worlds(store, in_turn("3")) as (resources, _):
        sampler, _ = await one_episode(store, resources)
        record, slot, _ = await ended(store, sampler)
    assert (slot.status, record.termination) == (SlotStatus.FAILED, "misconfigured")
    assert "index is -3; expected a number from 0 on" in (record.error or "")


async def test_a_cancelled_episode_leaves_no_session(store: Store, shared: Service) -> None:
    await registered(store, shared.url, "guess")
    await store.tasks.insert_new([task_of(store, 0, "guess", 7)])
    async with worlds(store, in_turn("3")) as (resources, engine):
        engine.silent.add(1)
        playing = asyncio.create_task(play(EnvironmentSampler(resources, await claim(store))))
        await engine.until_asked(2)
        assert shared.health()["sessions"] == 1
        playing.cancel()
        await asyncio.wait([playing])
        await shared.until(sessions=0)
        task = await store.tasks.get("main:train:0:t0")
    assert task is not None
    assert (task.slots[0].status, task.slots[0].failures) == (SlotStatus.OPEN, 0)


async def test_a_session_lasts_while_the_model_thinks_longer_than_its_lease(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "SESSION_RENEW_S", 0.2)
    with service("--workers", "1", "--lease_s", "2", worlds="Guess") as leased:
        await registered(store, leased.url, "guess")
        await store.tasks.insert_new([task_of(store, 0, "guess", 7)])
        async with worlds(store, in_turn("3", "7")) as (resources, engine):
            engine.silent.add(1)
            playing = asyncio.create_task(play(EnvironmentSampler(resources, await claim(store))))
            await engine.until_asked(2)
            await asyncio.sleep(6)  # three leases: the test is about time itself
            engine.silent.clear()
            await engine.wake()
            assert await playing == 0.75


async def test_a_lost_session_is_told_at_the_next_step_as_a_failure(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "SESSION_RENEW_S", 0.1)
    with service("--workers", "1", worlds="Guess") as one:
        await registered(store, one.url, "guess")
        await store.tasks.insert_new([task_of(store, 0, "guess", 7)])
        async with worlds(store, in_turn("3", "7")) as (resources, engine):
            engine.silent.add(1)
            playing = asyncio.create_task(play(sampler := EnvironmentSampler(resources, await claim(store))))
            await engine.until_asked(2)
            one.process.kill()
            one.process.wait()
            engine.silent.clear()
            await engine.wake()
            assert await playing is None
            record, slot, _ = await ended(store, sampler)
    assert (record.termination, record.score, slot.failures) == ("environment_failure", None, 1)


async def test_a_model_that_repeats_itself_is_stopped_as_in_other_episodes(store: Store, shared: Service) -> None:
    await registered(store, shared.url, "guess")
    await store.tasks.insert_new([task_of(store, 0, "guess", 7)])
    async with worlds(store, in_turn("3"), repetition_early_stop_times=3) as (resources, _):
        sampler, score = await one_episode(store, resources)
        record, _, dispatches = await ended(store, sampler)
    assert (record.termination, len(dispatches), score) == ("repetition", 3, -0.5)
    assert [dispatch.status for dispatch in dispatches[1:]] == [DispatchStatus.REPEAT_ERROR] * 2


async def test_a_context_policy_shows_the_world_s_episode_anew_with_a_summary(store: Store, shared: Service) -> None:
    await registered(store, shared.url, "guess")
    await store.tasks.insert_new([task_of(store, 0, "guess", 7)])
    long = [f"{k} " + "x" * 150 for k in range(3)]
    said = in_turn(*long, "It is none of 0 to 2.", "7")
    options = {"new_context": "discard_all", "context_budget_tokens": 900, "max_tokens": 1400, "max_new_tokens": 300}
    async with worlds(store, said, **options) as (resources, engine):
        sampler, score = await one_episode(store, resources)
        record, _, dispatches = await ended(store, sampler)
        engine.check(record, dispatches)
    causes = [dispatch.branch_cause for dispatch in dispatches]
    assert causes.count(BranchCause.CONTEXT_POLICY) >= 1, [(d.num_prompt, d.messages) for d in dispatches]
    assert record.termination == "answered", record.error
    assert score == 1.0 - 0.25 * (len(dispatches) - 2), "the summary is no move"
