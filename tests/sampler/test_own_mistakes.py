"""A mistake in a user's sampler: the episode fails with one line that names its location, and its slot is tried again."""

import asyncio
import re
import sys
from dataclasses import replace
from typing import Any, cast

import httpx
import pytest

from sampler.core.episode.episode import play
from sampler.core.episode.sampler import AsyncSampler, Turn
from sampler.scorers import Score
from scripts.bench.sampler_chat import Chat
from shared.documents.states import RecordStatus, SlotStatus, Termination
from shared.store import Store
from tests.sampler.episodes import ended, resources, says
from tests.shared.builders import claim, import_tasks

ANSWER = "<answer>4</answer>"


async def down(request: httpx.Request) -> httpx.Response:
    return httpx.Response(500, json={"error": {"message": "out of memory"}})


class Buggy(AsyncSampler):
    async def run(self) -> Termination:
        raise RuntimeError("a bug of ours")


class Forgetful(Chat):
    """Returns its score as a bare number, and the second time no termination either."""

    async def run(self) -> Termination:
        return None if self.claim.attempt > 1 else await super().run()  # type: ignore[return-value]  # wrong on purpose

    async def evaluate_record(self) -> Score:
        return 1.0  # type: ignore[return-value]  # wrong on purpose


class Blocking(AsyncSampler):
    def run(self) -> Termination:  # type: ignore[override]  # the mistake
        return Termination.ANSWERED


class Scorekeeper(Chat):
    async def run(self) -> Termination:
        await super().run()
        turn = Turn(self.episode.dispatches[0], "", {}, cast("Any", None), "stop")
        self.score_turn(turn, float("nan"))
        return Termination.ANSWERED


class Grouping(AsyncSampler):
    """Sends a request in a task group, and then fails in one."""

    async def run(self) -> Termination:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.create_chat_completions([{"role": "user", "content": "?"}]))
        async with asyncio.TaskGroup() as group:
            group.create_task(self.fails())
        return Termination.ANSWERED

    async def fails(self) -> None:
        raise KeyError("gone")


class Exiting(AsyncSampler):
    async def run(self) -> Termination:
        sys.exit(3)


MISTAKES = {
    "an exception": (Buggy, "Buggy: RuntimeError: a bug of ours", 'in run: raise RuntimeError("a bug of ours")'),
    "a wrong return type": (Forgetful, "Forgetful.evaluate_record returned 1.0; expected Score(", "async def evaluate_record("),
    "no async function": (Blocking, "Blocking.run is not an async function: write async def", "def run(self) -> Termination:"),
    "a call of ours with nonsense": (Scorekeeper, "ValueError: score nan of turn", "in run: self.score_turn("),
    "an exception in a task group": (Grouping, "Grouping: KeyError: 'gone'", 'in fails: raise KeyError("gone")'),
    "the end of the process": (Exiting, "Exiting: SystemExit: 3", "in run: sys.exit(3)"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
async def test_a_mistake_in_a_users_sampler_is_one_line_with_its_location_and_its_slot_fails_alone(
    store: Store, name: str
) -> None:
    kind, what, line = MISTAKES[name]
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, says(ANSWER)) as shared:
        sampler = kind(shared, await claim(store))
        assert await play(sampler) is None
    record, slot, _ = await ended(store, sampler)
    text = record.error or ""
    assert what in text
    assert "; at tests/sampler/test_own_mistakes.py:" in text
    assert line in text
    assert "\n" not in text
    assert (record.status, record.termination) == (RecordStatus.FAILED, Termination.UNFORESEEN)
    assert (slot.status, slot.score, slot.failures) == (SlotStatus.OPEN, None, 1)
    assert what in (slot.error or "")


async def test_an_infrastructure_failure_inside_a_users_task_group_is_handled_as_such(
    store: Store,
) -> None:
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, down) as shared:
        sampler = Grouping(shared, await claim(store))
        assert await play(sampler) is None
    record, slot, _ = await ended(store, sampler)
    assert (record.termination, slot.status, slot.failures) == (Termination.ENGINE_FAILURE, SlotStatus.OPEN, 1)


async def test_a_bug_of_this_program_leaves_its_traceback_in_the_record(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, says(ANSWER)) as shared:
        sampler = Chat(replace(shared, template=cast("Any", None)), await claim(store))
        assert await play(sampler) is None
    record, slot, _ = await ended(store, sampler)
    assert (record.termination, slot.failures) == (Termination.UNFORESEEN, 1)
    assert re.search(r"; at sampler/[\w/]+\.py:\d+, in \w+$", record.error or "")
    assert "in run" in (record.traceback or "")
