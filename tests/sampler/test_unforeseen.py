"""What nobody expected, in any stage of an episode or a settlement, fails that piece alone: counted, shown, tried again."""

import asyncio
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from sampler.core.engines.pool.engine_pool import EnginePool
from sampler.core.episode import episode as episodes
from sampler.core.episode import sampler as samplers
from sampler.core.episode.episode import play
from sampler.core.episode.journal import Journal
from sampler.core.episode.model_acts import ModelActs
from sampler.core.episode.sampler import AsyncSampler
from sampler.core.episode.scoring import evaluate
from sampler.core.episode.threads import EpisodeThreads
from sampler.core.errors import EngineUnavailable
from sampler.core.kinds.mcp_sampler import MCPSampler
from sampler.core.service.settling import Settling
from sampler.core.settlement import settle as settlement
from sampler.core.settlement.current_rules import CurrentRules
from shared.documents import Task
from shared.documents.states import RecordStatus, SlotStatus, TaskStatus, Termination
from shared.errors import StoreUnavailable
from shared.outside_text import error_text
from shared.store import Store
from shared.store import tasks as task_verbs
from shared.store.feedback import FeedbackVerbs
from shared.store.record_data import RecordDataVerbs
from shared.store.records import RecordVerbs
from shared.store.tasks import TaskVerbs
from shared.unforeseen import MAX_TRACEBACK_CHARS, bug_of, is_of_the_process
from tandem.commands.run_status import read_status
from tests.sampler.episodes import ended, resources, says
from tests.sampler.groups import completed_group
from tests.sampler.running import running_sampler, until
from tests.sampler.scored_groups import config
from tests.shared.builders import claim, import_tasks, let_time_pass

ANSWER = "<answer>4</answer>"
ADDRESS = "mongodb://ann:s3cr3t@db/?x=1"
EPISODE: dict[str, tuple[Any, str]] = {
    "the record": (RecordVerbs, "start"),
    "the opening": (AsyncSampler, "opening_messages"),
    "the prompt": (samplers, "next_prompt"),
    "the request's document": (Journal, "open"),
    "the engine": (EnginePool, "generate"),
    "the reply": (EpisodeThreads, "replied"),
    "the reply's document": (Journal, "answered"),
    "the last documents": (Journal, "close"),
    "the score": (episodes, "evaluate"),
    "the turns' scores": (RecordVerbs, "set_turn_scores"),
    "the record's end": (RecordVerbs, "move"),
    "the slot's end": (TaskVerbs, "finish_slot"),
}
SETTLEMENT: dict[str, tuple[Any, str]] = {
    "feedback": (FeedbackVerbs, "write_scores"),
    "the rules": (settlement, "settlement_of_group"),
    "the records": (RecordVerbs, "get_many"),
    "the share": (settlement, "settle_share"),
    "advantages": (RecordVerbs, "set_advantages"),
    "the tree": (settlement, "flatten"),
    "data": (RecordDataVerbs, "write_group"),
    "the records' end": (RecordVerbs, "settle_group"),
    "the curriculum": (task_verbs, "skipping"),
    "the end": (TaskVerbs, "finish_settlement"),
}


class Panic(BaseException):
    """As the tokenizer's Rust code raises."""


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def deep(levels: int = 0) -> int:
    return deep(levels + 1) + 1


def broken(*args: object, **named: object) -> NoReturn:
    raise AttributeError("nobody expected this")


ERRORS: dict[str, Callable[[], object]] = {
    "deep recursion": deep,
    "a panic of another language": lambda: (_ for _ in ()).throw(Panic("index out of bounds")),
    "the end of the process": lambda: sys.exit(3),
    "a cancellation of something else": lambda: (_ for _ in ()).throw(asyncio.CancelledError()),
    "an error without words": lambda: (_ for _ in ()).throw(Wordless()),
    "an error of many words": lambda: (_ for _ in ()).throw(TypeError("w" * 5_000_000)),
    "half a character": lambda: (_ for _ in ()).throw(KeyError("\ud83d\0")),
    "a group": lambda: (_ for _ in ()).throw(ExceptionGroup("two", [KeyError("a"), EngineUnavailable("b")])),
}


@pytest.mark.parametrize("stage", EPISODE)
async def test_a_bug_in_any_stage_of_an_episode_fails_its_own_slot(
    store: Store, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, says(ANSWER), retry_delay_s=0.001) as shared:
        with monkeypatch.context() as patch:
            patch.setattr(*EPISODE[stage], broken)
            played = MCPSampler(shared, await claim(store))
            assert await play(played) is None
        task = await the_task(store)
        (slot,) = task.slots
        assert (slot.status, slot.failures) == (SlotStatus.OPEN, 1)
        assert re.search(
            r"AttributeError: nobody expected this; at .*test_unforeseen\.py:\d+, in broken", slot.error or ""
        )
        assert task.unforeseen is not None
        assert (task.unforeseen.episodes, task.unforeseen.set_aside) == (1, False)
        (alarm,) = shared.bugs.alarms()
        assert "1 × episode failed, and all others continue. " in alarm
        assert f"The last: episode {played.claim.record_id}: sampler.core.kinds.mcp_sampler:MCPSampler: Attr" in alarm
        record = await store.records.get(played.claim.record_id)
        if stage not in ("the record", "the record's end"):  # those cannot be written while the bug is there
            assert record is not None
            assert record.status is (RecordStatus.ABANDONED if stage == "the slot's end" else RecordStatus.FAILED)
            assert (record.termination, record.error) == (Termination.UNFORESEEN, slot.error)
            assert "in broken" in (record.traceback or "")
        await let_time_pass(store)
        assert await play(MCPSampler(shared, await claim(store))) == 1.0, "the process goes on"


@pytest.mark.parametrize("kind", ERRORS)
async def test_whatever_is_raised_is_one_line_and_a_bounded_traceback(
    store: Store, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async def raises(*args: object) -> None:
        ERRORS[kind]()

    await import_tasks(store, 1, num_generations=1)
    async with resources(store, says(ANSWER)) as shared:
        monkeypatch.setattr(episodes, "evaluate", raises)
        played = MCPSampler(shared, await claim(store))
        assert await play(played) is None
    record, slot, _ = await ended(store, played)
    assert (slot.status, slot.failures, record.termination) == (SlotStatus.OPEN, 1, Termination.UNFORESEEN)
    assert record.error
    assert 0 < len(record.traceback or "") <= MAX_TRACEBACK_CHARS
    assert "in raises" in (record.traceback or "") or kind == "deep recursion"


async def test_a_bug_after_the_score_leaves_the_score(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, says(ANSWER)) as shared:
        monkeypatch.setattr(ModelActs, "ended", broken)
        played = MCPSampler(shared, await claim(store))
        await play(played)
        assert shared.bugs.count == 1
    record, slot, _ = await ended(store, played)
    assert (record.status, slot.status, slot.score, slot.failures) == (RecordStatus.SCORED, SlotStatus.SCORED, 1.0, 0)


async def test_a_task_with_max_failures_bugs_is_set_aside_and_shown_before_its_slots_are_used_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six slots with three failures each would be eighteen bugs."""
    await import_tasks(store, 1, num_generations=6)
    first, *others = [await claim(store) for _ in range(5)]
    async with resources(store, says(ANSWER), max_failures=3) as shared:
        assert await play(MCPSampler(shared, first)) == 1.0
        with monkeypatch.context() as patch:
            patch.setattr(episodes, "evaluate", broken)
            for held in others[:3]:
                await play(MCPSampler(shared, held))
        assert await claim(store) is None
        task = await the_task(store)
        assert [slot.status.value for slot in task.slots] == [
            "scored",
            "failed",
            "failed",
            "failed",
            "leased",
            "failed",
        ]
        assert await play(MCPSampler(shared, others[3])) == 1.0, "what is played is played to its end"
    task = await the_task(store)
    assert task.status is TaskStatus.COMPLETED
    assert task.unforeseen is not None
    assert task.unforeseen.set_aside
    (shown,) = (await read_status(store)).tasks_set_aside
    assert shown.startswith(
        f"task {task.id}: 3 of its episodes met a bug; the last: sampler.core.kinds.mcp_sampler:MCPSampler: Attr"
    )


async def test_a_lost_lease_of_a_task_that_is_set_aside_opens_no_slot(store: Store) -> None:
    await import_tasks(store, 1, num_generations=2)
    met, _ = await claim(store), await claim(store, lease_s=0.0)
    await store.tasks.retry_slot(met, "a bug", delay_s=0, max_failures=3, bugs_at_most=1)
    assert await claim(store) is None
    assert [slot.status for slot in (await the_task(store)).slots] == [SlotStatus.FAILED] * 2


@pytest.mark.parametrize("stage", SETTLEMENT)
async def test_a_bug_in_any_stage_of_a_settlement_fails_that_settlement(
    store: Store, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    await completed_group(store, [1.0, 0.0])
    settling = await settling_of(store, retry_delay_s=60)
    with monkeypatch.context() as patch:
        patch.setattr(*SETTLEMENT[stage], broken)
        await settling.settle_all()
    task = await the_task(store)
    assert (task.status, task.settler) == (TaskStatus.COMPLETED, None)
    assert task.unforeseen is not None
    assert task.unforeseen.settlements == 1
    await settling.settle_all()
    assert (await the_task(store)).status is TaskStatus.COMPLETED, "it waits for the retry"
    await let_time_pass(store)
    await settling.settle_all()
    assert (await the_task(store)).status is TaskStatus.SETTLED


async def test_a_group_whose_settlement_always_fails_is_abandoned_and_others_are_settled(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await completed_group(store, [1.0, 0.0])
    settling = await settling_of(store, max_failures=2, retry_delay_s=0.001)
    monkeypatch.setattr(RecordDataVerbs, "write_group", broken)
    for _ in range(2):
        await settling.settle_all()
        await let_time_pass(store)
    task = await the_task(store)
    assert task.status is TaskStatus.ABANDONED
    assert (task.outcome or "").startswith(
        "abandoned: its settlement met a bug 2 times: AttributeError: nobody expected"
    )
    records = [await store.records.get(f"{task.id}:{slot}:1") for slot in range(2)]
    assert [record and record.status for record in records] == [RecordStatus.ABANDONED] * 2
    (shown,) = (await read_status(store)).tasks_set_aside
    assert "2 of its settlements met a bug" in shown


async def test_a_sampler_goes_on_after_bugs_and_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:

    async def sometimes(played: AsyncSampler) -> Any:
        return broken() if played.task.tid == "t1" else await evaluate(played)

    monkeypatch.setattr(episodes, "evaluate", sometimes)
    await import_tasks(store, 3, num_generations=1)
    options = {"max_failures": 2, "retry_delay_s": 0.01, "heartbeat_s": 0.05, "poll_s": 0.02}
    async with running_sampler(store, MCPSampler, **options) as service:
        await until(store.tasks.count_slots, lambda counts: (counts.get("scored"), counts.get("failed")) == (2, 1))
        (worker,) = await until(lambda: workers(store), lambda found: found[0]["stats"].get("bugs") == 2)
        assert not service.done()
    assert worker["alarms"][0].startswith(
        "unforeseen errors: 2 × episode failed, and all others continue. The last: episode main:"
    )


async def workers(store: Store) -> list[dict[str, Any]]:
    return (await read_status(store)).workers


def test_the_database_ends_the_process_also_out_of_a_group() -> None:
    assert is_of_the_process(ExceptionGroup("", [KeyError(), StoreUnavailable("away")]))
    assert not is_of_the_process(ExceptionGroup("", [KeyError()]))


def test_a_bug_hides_passwords_and_survives_an_exception_without_a_text() -> None:
    try:
        raise ValueError(f"no answer from {ADDRESS}")
    except ValueError as exc:
        bug = bug_of(exc)
    assert "s3cr3t" not in bug.error + bug.traceback
    assert error_text(Wordless()) == "Wordless: (its text raises ValueError)"


async def settling_of(store: Store, **values: object) -> Settling:
    settings = config(store, default_scorers=[], **values)
    rules = CurrentRules(store, settings, "w")
    await rules.begin()
    return Settling(store, "w", settings, rules, None)


async def the_task(store: Store) -> Task:
    task = await store.tasks.get("main:train:0:t0")
    assert task is not None
    return task
