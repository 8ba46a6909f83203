"""Who speaks when in a slot, and drafts at once."""

import asyncio
from pathlib import Path

from sampler.actors.parallel_sampler import ParallelSampler
from sampler.actors.seating import order_of
from sampler.core.episode.episode import play
from sampler.scorers import Score
from sampler.settings import SamplerConfig
from shared.documents import Claim
from shared.documents.states import DispatchStatus, SlotStatus
from shared.store import Store
from shared.tasks.line_errors import LineError
from shared.tasks.lines import read_task_file
from tests.sampler.actors.tables import ACTORS, CRITIC, NEW, Talk, table
from tests.sampler.agents.endpoints import endpoint
from tests.sampler.episodes import MODEL, ended
from tests.shared.builders import claim, import_tasks, make_task


class Drafts(ParallelSampler):
    async def evaluate_record(self) -> Score:
        return Score(1.0)


def orders(attempt: int) -> list[list[str]]:
    config = SamplerConfig(
        run="r", db_connection_string="x", model_name_or_path=MODEL, actors=ACTORS, rounds="**(1..4) -> (Bob/Old)*3"
    )
    claims = [Claim(task=make_task(0, num_generations=64), traj_id=slot, attempt=attempt) for slot in range(64)]
    return [order_of(config.seats, one, list(ACTORS)) for one in claims]


def test_every_attempt_at_a_slot_has_the_same_order_and_slots_differ() -> None:
    assert orders(1) == orders(2)
    assert len({tuple(order) for order in orders(1)}) > 30


async def test_drafts_do_not_hear_each_other_and_the_last_hears_all(store: Store) -> None:
    await import_tasks(store, 1)
    async with table(store, rounds="Bob*2 -> Rival -> Bob", name_speakers=True) as shared:
        sampler = Drafts(shared, await claim(store))
        assert await play(sampler) == 1.0
    record, _, dispatches = await ended(store, sampler)
    assert [d.thread for d in dispatches] == ["Bob#1", "Bob#2", "Rival#3", "Bob#4"]
    assert [d.messages[-1]["content"] for d in dispatches[:3]] == ["2+2?"] * 3
    heard = dispatches[3].messages[-1]["content"].split("\n\n")
    assert heard[0] == "2+2?"
    assert sorted(heard[1:]) == ["Bob says: four", "Bob says: four", "Rival says: forty"]
    assert {name: seat.turns for name, seat in record.actors.items()} == {"Bob": 3, "Rival": 1}


async def test_a_draft_that_fails_cancels_the_others_and_the_slot_is_tried_again(store: Store) -> None:
    await import_tasks(store, 1)
    actors = {**ACTORS, **CRITIC}
    async with (
        endpoint("status 503") as down,
        endpoint("hangs") as silent,
        table(
            store,
            rounds="Critic -> Slow -> Bob",
            actors={**actors, "Slow": {"model": "slow"}},
            players={"judge-api": [down], "slow": [silent]},
        ) as shared,
    ):
        sampler = Drafts(shared, await claim(store))
        assert await asyncio.wait_for(play(sampler), 60) is None
    record, slot, dispatches = await ended(store, sampler)
    assert (record.status, record.termination, slot.status, slot.failures) == (
        "failed",
        "agent_failure",
        SlotStatus.OPEN,
        1,
    )
    assert {d.status for d in dispatches} == {DispatchStatus.FAILED}


async def test_rounds_of_one_turn_are_no_drafts(store: Store) -> None:
    await import_tasks(store, 1)
    async with table(store, rounds="Bob") as shared:
        sampler = Drafts(shared, await claim(store))
        assert await play(sampler) is None
    record, slot, _ = await ended(store, sampler)
    assert slot.status is SlotStatus.FAILED
    assert "its rounds have one turn; expected drafts, and one who combines them" in str(record.error)


async def test_a_version_of_an_actor_that_does_not_speak_is_not_waited_for(store: Store) -> None:
    await import_tasks(store, 1)
    async with table(store, listed=[NEW], rounds="Bob -> Old") as shared:
        assert await play(Talk(shared, await claim(store))) is not None


def test_a_line_with_wrong_rounds_is_refused_at_import(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(
        '{"id": "a", "query": "q", "rounds": "A ->"}\n{"id": "b", "query": "q", "actors": {"A": {"at": 3}}}\n'
    )
    errors = [str(line) for line in read_task_file(file) if isinstance(line, LineError)]
    assert len(errors) == 2
    assert "t.jsonl:1: rounds: at 4: found the end; expected a seat's name" in errors[0]
    assert '"actors.A" is' in errors[1]
