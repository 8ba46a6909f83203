"""`GameSampler`: a world of several players, each seat played by an actor. A real service, a real store."""

import json
from collections.abc import Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from sampler.core.episode.episode import play
from sampler.core.episode.resources import Resources
from sampler.environments.choosing import Environments
from sampler.environments.game_sampler import GameSampler
from sampler.environments.sampler import EnvironmentSampler
from sampler.settings import SamplerConfig
from shared.documents.states import SlotStatus
from shared.store import Store
from tandem.evaluation.league import league_of
from tests.sampler.actors.tables import table
from tests.sampler.engines import answer
from tests.sampler.environments.playing import registered, task_of
from tests.sampler.environments.services import Service, service
from tests.sampler.episodes import TEMPLATE, ended
from tests.sampler.pools import fields_of
from tests.sampler.settling import settle_next
from tests.shared.builders import claim

LINEUPS = [{"X": "Bob", "O": "Rival"}, {"X": "Rival", "O": "Bob"}]
DUEL = Path(__file__).parent / "duel.py"


@pytest.fixture(scope="module")
def shared() -> Iterator[Service]:
    with service("--workers", "1", "--environments", f"duel={DUEL}:Duel") as found:
        yield found


@asynccontextmanager
async def duels(store: Store, shared: Service, generations: int = 1, **given: Any) -> Any:
    """What the episodes share, with one task. The newest weights reply "four", version 40 "forty"."""
    await registered(store, shared.url, "duel")
    custom = {"custom_task": given.pop("custom_task", {})}
    await store.tasks.insert_new([task_of(store, 0, "duel", num_generations=generations, **custom)])
    async with AsyncExitStack() as ending:
        resources = await ending.enter_async_context(table(store, lineups=LINEUPS, **{"max_turns": 8, **given}))
        environments = Environments(store.environments.live, resources.config.part(SamplerConfig).environments)
        ending.push_async_callback(environments.close)
        yield Resources(**{**fields_of(resources), "opened": resources.opened.replaced(environments)})


async def test_each_seat_is_played_by_its_actor_and_reads_only_what_the_world_tells_it(
    store: Store, shared: Service
) -> None:
    async with duels(store, shared, custom_task={"asks": [1, 0, 1]}) as resources:
        sampler = GameSampler(resources, await claim(store))
        score = await play(sampler)
    record, slot, dispatches = await ended(store, sampler)
    assert [(d.policy, d.thread) for d in dispatches] == [("main@40", "O"), ("main", "X"), ("main@40", "O")]
    assert [message["content"] for d in dispatches for message in d.messages if message["role"] != "system"] == [
        "2 players, seat 1",
        "seat 0, go",
        "seat 1, go",
    ]
    assert [d.messages[0]["content"] for d in dispatches if d.policy == "main"] == ["You are Bob."]
    assert (score, slot.score, record.termination) == (1.0, 1.0, "answered"), "'four' is more than 'forty', for Bob"
    assert {name: seat.score for name, seat in record.actors.items()} == {"X": 1.0, "O": -1.0}
    assert record.metrics == {"moves": 2.0}
    assert record.policy_scores == {"main@40": -1.0}, "not the episode's score, which is Bob's"


async def test_the_learners_turns_are_trained_by_its_own_seats_rewards_on_either_side(
    store: Store, shared: Service
) -> None:
    async with duels(store, shared, generations=4) as resources:
        for _ in range(4):
            assert await play(GameSampler(resources, await claim(store))) == 1.0, "Bob wins from both seats"
        await settle_next(store, "w", resources.config)
    trained = await store.data.find({})
    turns = [used.turn for data in sorted(trained, key=lambda data: data.record) for used in data.dispatches]
    assert turns == [0, 1, 0, 1], "X moves first, and Bob is X in every second slot"
    league = league_of(await store.questions.seated_records("train", 10))
    assert (league.total("main 3").won, league.total("main 40").won) == (4, 0)


@pytest.mark.parametrize(
    ("custom", "wrong"),
    [
        ({"asks": [0, 5]}, "seat 5; expected one of 2 seats"),
        ({"earned": {"0": 1.0}}, "ended without a reward of seat O"),
        ({"earned": {"0": 1.0, "2": 1.0}}, "ended without a reward of seat O"),
        ({"asks": [0, 0], "tells": [{"role": "assistant", "content": "four"}]}, "is the model's own reply"),
        ({"asks": [0, 0], "tells": [{"role": "system", "content": "Anew."}]}, "its whole history anew"),
    ],
)
async def test_a_world_that_breaks_the_rules_of_a_game_has_failed(
    store: Store, shared: Service, custom: dict[str, Any], wrong: str
) -> None:
    async with duels(store, shared, custom_task=custom) as resources:
        sampler = GameSampler(resources, await claim(store))
        assert await play(sampler) is None
    record, slot, _ = await ended(store, sampler)
    assert (slot.status, slot.failures, record.termination) == (SlotStatus.OPEN, 1, "environment_failure")
    assert wrong in (record.error or "")


async def test_a_reward_of_a_seat_that_is_no_number_fails_the_game_once(store: Store, shared: Service) -> None:
    async with duels(store, shared, custom_task={"earned": {"0": 1.0, "1": None}}) as resources:
        sampler = GameSampler(resources, await claim(store))
        assert await play(sampler) is None
    record, slot, _ = await ended(store, sampler)
    assert (slot.status, slot.failures, record.termination) == (SlotStatus.FAILED, 1, "environment_failure")
    assert "rewards.1 is None; expected a finite number" in (record.error or "")


@pytest.mark.parametrize(
    ("limits", "termination", "reward"),
    [
        ({"max_turns": 3}, "turns_limit", -1.0),
        ({"max_turns": 3, "cut_game_reward": -5.0}, "turns_limit", -5.0),
        ({"max_prompt_tokens": 5}, "length_limit", -1.0),
    ],
)
async def test_a_game_that_is_cut_is_no_better_than_a_lost_one_for_anyone(
    store: Store, shared: Service, limits: dict[str, Any], termination: str, reward: float
) -> None:
    """Who loses would else play on for ever."""
    async with duels(store, shared, custom_task={"asks": [0, 1] * 20}, **limits) as resources:
        sampler = GameSampler(resources, await claim(store))
        assert await play(sampler) == reward
    record, _, dispatches = await ended(store, sampler)
    assert (record.termination, len(dispatches)) == (termination, limits.get("max_turns", 0))
    assert {seat.score for seat in record.actors.values()} == ({reward} if dispatches else set())


async def test_a_reply_that_max_new_tokens_cut_is_a_move_that_the_world_judges(store: Store, shared: Service) -> None:
    async def cut(request: httpx.Request) -> httpx.Response:
        prompt = json.loads(request.content)["input_ids"]
        ids = TEMPLATE.encode("fo")
        return answer(ids, {"type": "length", "length": len(ids)}, prompt_tokens=len(prompt))

    async with duels(store, shared, new=cut) as resources:
        sampler = GameSampler(resources, await claim(store))
        assert await play(sampler) == -1.0, "'fo' is less than 'forty'"
    record, _, dispatches = await ended(store, sampler)
    assert record.termination == "answered"
    assert [d.response.finish_reason for d in dispatches if d.response] == ["length", "stop"]
    assert json.loads((record.reward_details or {})["result"]) == {"said": {"0": "fo", "1": "forty"}}


async def test_a_game_is_not_played_as_a_conversation_of_one(store: Store, shared: Service) -> None:
    async with duels(store, shared, custom_task={"players": 2}) as resources:
        sampler = EnvironmentSampler(resources, await claim(store))
        assert await play(sampler) is None
    record, *_ = await ended(store, sampler)
    assert 'expected "sampler": "game"' in (record.error or "")
