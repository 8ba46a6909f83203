"""What each seat sees, who is asked, and whose turns are trained."""

from typing import Any

import pytest

from sampler.actors.rounds_sampler import RoundsSampler
from sampler.actors.versions_away import UnavailableVersions
from sampler.core.episode.episode import play
from sampler.scorers import Score
from sampler.settings import SamplerConfig
from shared.documents.packed import unpack_ints
from shared.documents.states import DispatchStatus, SlotStatus
from shared.episodes.state import EpisodeState
from shared.store import Store
from tandem.audit.run import Check, audit
from tests.sampler.actors.tables import ACTORS, CRITIC, NEW, Talk, played, table
from tests.sampler.agents.endpoints import endpoint
from tests.sampler.episodes import MODEL, TEMPLATE, ended
from tests.sampler.settling import settle_next
from tests.shared.builders import claim, import_tasks, let_time_pass

TASK = "main:train:0:t0"
ROUND = "Bob -> Rival -> Old -> Bob"


async def test_each_seat_has_a_thread_with_its_own_system_prompt_and_hears_the_others_as_users(store: Store) -> None:
    await import_tasks(store, 1)
    async with table(store, rounds=ROUND, name_speakers=True) as shared:
        sampler = Talk(shared, await claim(store))
        assert await play(sampler) is not None
    record, _, dispatches = await ended(store, sampler)
    assert [(d.policy, d.thread, d.service) for d in dispatches] == [
        ("main", "Bob", "http://new"),
        ("main@40", "Rival", "http://old"),
        ("main@frozen", "Old", "http://new"),
        ("main", "Bob", "http://new"),
    ]
    systems = [next((m["content"] for m in d.messages if m["role"] == "system"), None) for d in dispatches]
    assert systems[0] is not None
    assert systems[0].startswith("You are Bob.")
    assert systems[1:] == [None, None, None], "the answer's form is for who is scored"
    assert [d.messages[-1]["content"] for d in dispatches] == [
        "2+2?",
        "2+2?\n\nBob says: four",
        "2+2?\n\nBob says: four\n\nRival says: forty",
        "Rival says: forty\n\nOld says: four",
    ]
    state = EpisodeState(record, dispatches)
    assert state.problems == []
    assert state.turns[3].parent == 0, "the seat goes on from its own ids"
    assert state.ids_of(3)[: len(state.ids_of(0))] == state.ids_of(0)
    assert TEMPLATE.decode(unpack_ints(dispatches[3].prompt_ids).tolist()).count("four") == 1
    assert {name: (seat.actor, seat.policy, seat.turns, seat.versions) for name, seat in record.actors.items()} == {
        "Bob": ("Bob", "main", 2, [3]),
        "Rival": ("Rival", "main@40", 1, [40]),
        "Old": ("Old", "main@frozen", 1, [3]),
    }
    assert record.policy_versions == [3]
    assert record.answer is None or "forty" not in record.answer


async def test_only_the_turns_of_an_actor_without_at_are_trained(store: Store) -> None:
    data = await played(store, rounds=ROUND)
    assert [(d.id, d.policy, [x.turn for x in d.dispatches]) for d in data] == [
        (f"{TASK}:0:1", "main", [0, 3]),
        (f"{TASK}:1:1", "main", [0, 3]),
    ]
    assert [d.dispatches[0].advantage for d in data] == [0.5, -0.5]
    assert {d.max_version for d in data} == {3}, "no token of version 40"
    task = await store.tasks.get(TASK)
    assert task is not None
    assert task.data_of == ["main"]
    report = await audit(store)
    assert report.ok, report


async def test_the_audit_finds_a_turn_of_a_seat_that_is_never_trained(store: Store) -> None:
    """As a settlement would leave it that took a pinned actor's turn for the policy's own."""
    await played(store, rounds=ROUND)
    await store.database["dispatched_sampling_tasks"].update_one(
        {"_id": f"{TASK}:0:1:3"}, {"$set": {"policy": "main@40"}}
    )
    assert (await audit(store)).results[Check.POLICIES].violations > 0


# ---------------------------------------------------------------------- pinned


async def test_a_pinned_actor_waits_without_blame_and_without_a_record_while_no_engine_serves_its_version(
    store: Store,
) -> None:
    await import_tasks(store, 1)
    async with table(store, listed=[NEW], rounds=ROUND) as shared:
        sampler = Talk(shared, await claim(store))
        assert await play(sampler) is None
        (alarm,) = shared.alarms()
        assert "is pinned to version 40 of policy main, which no engine serves; start one: python -m" in alarm
        shared.opened.of(UnavailableVersions).note("main", 40)
        assert shared.alarms() == []
    assert await store.records.get(sampler.claim.record_id) is None
    task = await store.tasks.get(TASK)
    assert task is not None
    slot, now = task.slots[0], await store.questions.server_time()
    assert (slot.status, slot.failures, slot.error) == (SlotStatus.OPEN, 0, None)
    assert slot.free_at > now, "it is not claimed again at once"


async def test_an_evaluation_does_not_wait_without_end_for_a_pinned_version(store: Store) -> None:
    """Else the engine that serves the evaluated version would never follow again."""
    await import_tasks(store, 1, split="eval", at_version=41)
    async with table(store, listed=[NEW], rounds=ROUND, max_failures=2) as shared:
        for failures in (1, 2):
            await let_time_pass(store)
            sampler = Talk(shared, await claim(store, split="eval", served_versions=[41]))
            assert await play(sampler) is None
            record, slot, _ = await ended(store, sampler)
            assert (record.status, record.termination, slot.failures) == ("failed", "version_away", failures)
    assert slot.status is SlotStatus.FAILED
    assert "is pinned to version 40 of policy main, which no engine serves" in (slot.error or "")


class Vanishes(Talk):
    """Version 40 is gone when it is asked."""

    async def require_engines(self) -> None:
        return


async def test_a_version_that_goes_away_in_the_middle_costs_no_failure(store: Store) -> None:
    await import_tasks(store, 1)
    async with table(store, listed=[NEW], rounds=ROUND) as shared:
        sampler = Vanishes(shared, await claim(store))
        assert await play(sampler) is None
    record, slot, dispatches = await ended(store, sampler)
    assert (record.status, record.termination) == ("abandoned", "version_away")
    assert (slot.status, slot.failures) == (SlotStatus.OPEN, 0)
    assert [d.status for d in dispatches] == [DispatchStatus.COMPLETED, DispatchStatus.CANCELLED]


class Follows(Talk):
    """The engine of version 40 loads version 41 in the middle of a reply."""

    async def create_chat_completions(self, *arguments: Any, **named: Any) -> Any:
        turn = await super().create_chat_completions(*arguments, **named)
        self.episode.other_versions.get("main@40", set()).add(41)
        return turn


async def test_a_pinned_turn_of_several_versions_is_played_again_without_a_failure(store: Store) -> None:
    await import_tasks(store, 1)
    async with table(store, rounds=ROUND) as shared:
        sampler = Follows(shared, await claim(store))
        assert await play(sampler) is None
    record, slot, _ = await ended(store, sampler)
    assert (record.status, record.termination) == ("abandoned", "version_away")
    assert "main@40 was sampled by version 41 too; expected 40 alone" in (record.error or "")
    assert (slot.status, slot.failures) == (SlotStatus.OPEN, 0)


# ---------------------------------------------------------------------- API models


async def test_an_api_model_takes_a_seat_with_failover_and_is_recorded_and_never_trained(store: Store) -> None:
    async with endpoint("status 401") as broken, endpoint("says <think>hm</think> Too short.", "says Good.") as good:
        actors = {**ACTORS, **CRITIC}
        rounds = "Bob -> Critic -> Bob -> Critic"
        data = await played(store, rounds=rounds, actors=actors, players={"judge-api": [broken, good]})
        asked = [[(m["role"], m["content"]) for m in body["messages"]] for _, body in good.requests]
    opening = [("system", "You criticize."), ("user", "2+2?\n\nfour")]
    assert asked[:2] == [opening, [*opening, ("assistant", "Too short."), ("user", "four")]]
    assert [[x.turn for x in d.dispatches] for d in data] == [[0, 2], [0, 2]]
    (record,) = (await store.records.get_many([f"{TASK}:0:1"])).values()
    dispatches = (await store.records.dispatches_of([record.id]))[record.id]
    said = dispatches[1]
    assert (said.policy, said.thread, said.status) == ("model:judge-api", "Critic", DispatchStatus.COMPLETED)
    assert said.response is not None
    assert said.response.text == "Too short."
    assert said.played_by is not None
    assert (said.played_by.model, len(said.played_by.failures)) == ("m2", 1)
    assert dispatches[2].messages[-1]["content"] == "Too short."
    assert EpisodeState(record, dispatches).problems == []
    assert (await audit(store)).ok


async def test_an_api_model_that_is_down_is_an_infrastructure_failure_and_no_score(store: Store) -> None:
    await import_tasks(store, 1)
    async with (
        endpoint("status 503") as down,
        table(store, rounds="Bob -> Critic", actors={**ACTORS, **CRITIC}, players={"judge-api": [down]}) as shared,
    ):
        sampler = Talk(shared, await claim(store))
        assert await play(sampler) is None
    record, slot, dispatches = await ended(store, sampler)
    assert (record.status, record.termination, record.score) == ("failed", "agent_failure", None)
    assert (slot.status, slot.failures, slot.score) == (SlotStatus.OPEN, 1, None)
    assert [d.status for d in dispatches] == [DispatchStatus.COMPLETED, DispatchStatus.FAILED]


async def test_an_unknown_model_fails_the_slot_once_and_names_the_file(store: Store) -> None:
    await import_tasks(store, 1)
    async with table(store, rounds="Bob -> Critic", actors={**ACTORS, **CRITIC}) as shared:
        sampler = Talk(shared, await claim(store))
        assert await play(sampler) is None
    record, slot, _ = await ended(store, sampler)
    assert slot.status is SlotStatus.FAILED
    assert "an actor's model is 'judge-api'; expected one of players in the file that agent_config_path names" in str(
        record.error
    )


# ---------------------------------------------------------------------- who sits where


async def test_slots_of_a_group_have_different_lineups_and_a_tasks_own_actors_win(store: Store) -> None:
    await import_tasks(store, 1)
    await store.database["tasks"].update_many(
        {},
        {
            "$set": {
                "payload.actors": {"Me": {"policy": "main"}, "Old": {"policy": "main", "at": 40}},
                "payload.lineups": [{"X": "Me", "O": "Old"}, {"X": "Old", "O": "Me"}],
                "payload.rounds": "X -> O",
            }
        },
    )
    async with table(store) as shared:
        for _ in range(2):
            assert await play(Talk(shared, await claim(store))) is not None
        await settle_next(store, "w", shared.config)
    data = sorted(await store.data.find({}), key=lambda one: one.id)
    assert [(d.policy, [x.turn for x in d.dispatches]) for d in data] == [("main", [0]), ("main", [1])]
    records = await store.records.get_many([d.record for d in data])
    assert [records[d.record].actors["X"].policy for d in data] == ["main", "main@40"]


class Stranger(RoundsSampler):
    async def evaluate_record(self) -> Score:
        return Score(1.0, actors={"Stranger": 1.0})


async def test_a_score_of_a_seat_that_is_not_there_is_no_score(store: Store) -> None:
    await import_tasks(store, 1)
    async with table(store, rounds="Bob") as shared:
        sampler = Stranger(shared, await claim(store))
        assert await play(sampler) is None
    record, _, _ = await ended(store, sampler)
    assert record.error is not None
    assert "scored seats ['Stranger']; expected some of this slot's: Bob, Rival, Old" in record.error


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"actors": {"A": {}}}, "expected one of policy .* and model"),
        ({"actors": {"A": {"policy": "main", "model": "x"}}}, "expected one of policy .* and model"),
        ({"actors": {"A": {"model": "x", "at": 3}}}, "has no versions"),
        ({"actors": {"A": {"policy": "b"}}}, "actors.A.policy is 'b'; expected one of main"),
        ({"actors": {"A->": {"policy": "main"}}}, "actor name"),
        ({"actors": {"A": {"policy": "main"}}, "rounds": "A -> B"}, "'B' is no seat; expected one of A"),
        ({"actors": {"A": {"policy": "main"}}, "lineups": [{"X": "B"}]}, r"lineups\[0\] seats 'B'"),
        ({"rounds": "A ->"}, "rounds: at 4: found the end"),
    ],
)
def test_contradictory_settings_are_refused_and_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SamplerConfig(run="r", db_connection_string="x", model_name_or_path=MODEL, **options)


def test_a_policy_whose_actors_are_all_fixed_has_no_trainer_to_wait_for() -> None:
    others: dict[str, Any] = {"other_policies": {"judge": MODEL, "peer": MODEL, "free": MODEL}}
    actors = {
        "Bob": {"policy": "main"},
        "Judge": {"policy": "judge", "at": "frozen"},
        "Past": {"policy": "judge", "at": 0},
        "Peer": {"policy": "peer", "at": 0},
        "Learner": {"policy": "peer"},
    }
    config = SamplerConfig(run="r", db_connection_string="x", model_name_or_path=MODEL, actors=actors, **others)
    assert config.untrained_policies == ["judge"]
    assert config.trained_policies == ["main", "peer", "free"]
