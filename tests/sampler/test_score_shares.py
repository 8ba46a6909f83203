"""After a dozen scored episodes a sampler says what share can teach nothing, and what to do."""

import pytest

from sampler.core.episode.episode import play
from sampler.core.kinds.mcp_sampler import MCPSampler
from sampler.core.service.score_shares import FIRST, FIRST_GROUPS, ScoreShares
from sampler.settings import SamplerConfig
from shared.documents import Slot, Task
from shared.documents.states import SlotStatus
from shared.store import Store
from shared.store.pipelines import EPOCH
from tandem.commands.run_status import read_status
from tests.sampler.gateway.agents import ScriptedEngine
from tests.sampler.gateway.gateways import gateway
from tests.sampler.gateway.test_external import step
from tests.sampler.running import running_sampler, until
from tests.sampler.test_mcp_sampler import BOX, NO_AGENTS, calls, resources
from tests.sampler.test_opening import WHOLE_REPLY
from tests.shared.builders import claim, import_tasks, make_task

RIGHT, WRONG, NO_TAGS = "<answer>4</answer>", "<answer>5</answer>", "It is four."


def make_shares() -> ScoreShares:
    config = SamplerConfig.model_validate({"run": "r", "db_connection_string": "x", "model_name_or_path": "."})
    return ScoreShares(config)


async def play_all(store: Store, shares: ScoreShares, episodes: list[list[str]]) -> None:
    await import_tasks(store, len(episodes), num_generations=1)
    assert BOX
    for replies in episodes:
        async with resources(store, replies, NO_AGENTS) as (shared, _):
            sampler = MCPSampler(shared, await claim(store))
            score = await play(sampler)
            assert score is not None
            shares.scored(sampler, score)


async def test_replies_without_an_answer_and_episodes_without_a_tool_call_are_told_with_what_to_do(
    store: Store,
) -> None:
    shares = make_shares()
    await play_all(store, shares, [[NO_TAGS]] * 9 + [[RIGHT], [calls("add", a=2, b=2), RIGHT]])
    assert shares.stats() == {}
    assert shares.alarms() == []
    await play_all_more(store, shares)
    assert shares.stats() == {"no_answer": 0.75, "cut": 0.0, "no_tool_call": 0.917}
    no_answer, no_call = shares.alarms()
    assert no_answer.startswith(
        f"75% of the last {FIRST} scored episodes score 0, and their reply has no answer in the task's"
    )
    assert "answer_instruction" in no_answer
    assert no_call.startswith("92% of the last 12 scored episodes called no tool, although there are some")


async def play_all_more(store: Store, shares: ScoreShares) -> None:
    await store.tasks.insert_new([make_task(50, num_generations=1)])
    async with resources(store, [WRONG], NO_AGENTS) as (shared, _):
        sampler = MCPSampler(shared, await claim(store))
        score = await play(sampler)
        assert score is not None
        shares.scored(sampler, score)


async def test_a_scorer_of_whole_replies_misses_no_answer(store: Store) -> None:
    task = make_task(0, num_generations=1)
    payload = task.payload.model_copy(update={"scorer": WHOLE_REPLY})
    await store.tasks.insert_new([task.model_copy(update={"payload": payload})])
    shares = make_shares()
    async with resources(store, [NO_TAGS], NO_AGENTS) as (shared, _):
        sampler = MCPSampler(shared, await claim(store))
        assert await play(sampler) is not None
        for _ in range(FIRST):
            shares.scored(sampler, 0.0)
    assert "no_answer" not in shares.stats()


def group(scores: list[float | None], seq: int, split: str = "train") -> Task:
    slots = [
        Slot(
            traj_id=k, free_at=EPOCH, status=SlotStatus.SCORED if score is not None else SlotStatus.FAILED, score=score
        )
        for k, score in enumerate(scores)
    ]
    return make_task(seq, num_generations=len(scores), split=split).model_copy(update={"slots": slots})


def test_groups_of_equal_scores_are_told_once_there_are_some_and_no_longer_once_they_differ() -> None:
    shares = make_shares()
    for seq in range(FIRST_GROUPS - 1):
        shares.settled(group([0.0, 0.0, None], seq))
    shares.settled(group([0.0, 0.0], 50, split="eval"))
    shares.settled(group([0.0], 51))
    assert shares.stats() == {}
    shares.settled(group([1.0, 1.0], 60))
    assert shares.stats() == {"equal_groups": 1.0}
    (alarm,) = shares.alarms()
    assert alarm.startswith("100% of the last 4 scored groups have the same score in every episode and teach nothing")
    assert "max_resampled_groups" in alarm
    for seq in range(70, 74):
        shares.settled(group([0.0, 1.0], seq))
    assert shares.stats() == {"equal_groups": 0.5}
    assert shares.alarms() == []


@pytest.mark.slow
async def test_a_running_sampler_says_it_in_its_heartbeat_and_status_shows_the_alarm(store: Store) -> None:
    await import_tasks(store, 8, num_generations=4)
    async with running_sampler(store, poll_s=0.02, heartbeat_s=0.05):
        seen = await until(lambda: read_status(store), lambda seen: seen.workers and seen.workers[0]["alarms"])
        (alarm,) = seen.workers[0]["alarms"]
        assert "have the same score in every episode" in alarm
        assert seen.workers[0]["stats"]["shares"]["equal_groups"] == 1.0


async def test_attempts_of_agents_elsewhere_are_counted_like_episodes(store: Store) -> None:
    """Once each, although an end is sent again, and also where another process has served the request."""
    await import_tasks(store, FIRST, num_generations=1)
    engine = ScriptedEngine(["It is seven."] * 6 + ["<answer>7</answer>"] * (FIRST - 6))
    async with gateway(store, engine, max_concurrent_episodes=64) as one, gateway(store, engine) as other:
        for number in range(FIRST):
            offer = await one.claim()
            messages = list(offer["messages"])
            await step((one if number % 2 else other).sdk(offer["api_key"]), messages)
            for _ in range(2):
                done = await one.finish(offer["api_key"])
                assert done.status_code == 200, done.text
        shares = one.service._shares
        assert shares.stats() == {"no_answer": 0.5, "cut": 0.0, "no_tool_call": 1.0}
        assert one.service._counts["episodes"] == FIRST
        assert [alarm.partition(":")[0] for alarm in shares.alarms()][1].endswith(
            "called no tool, although there are some"
        )
