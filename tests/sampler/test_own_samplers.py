"""A faulty user's sampler fails its own slots; the process ends, with a status that forbids its restart, where no episode of
several tasks can be played."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from sampler.core.episode.sampler import AsyncSampler
from sampler.core.errors import EngineRefused, EngineUnavailable
from shared.documents import Task, TaskPayload
from shared.documents.fork import ForkOrigin
from shared.documents.states import Termination
from shared.errors import ConfigError, one_by_one
from shared.names import FORK_SPLIT
from shared.processes.mongod import Mongod
from shared.store import Store
from tandem.commands.run_status import read_status
from tests.sampler.episodes import MODEL
from tests.sampler.running import engine_is_up, running_sampler, until
from tests.shared.builders import import_tasks, make_task

ROOT = Path(__file__).parents[2]
MINE = """
from sampler.core.episode.sampler import AsyncSampler


class Mine(AsyncSampler):
    async def run(self):
        return self.task.payload.qurey
"""
OPTIONS = {"max_concurrent_episodes": 1, "poll_s": 0.02}


class Level(BaseModel):
    level: int


class Unborn(AsyncSampler):
    def __init__(self, *args: object) -> None:
        raise LookupError("no world")

    async def run(self) -> Termination:
        raise AssertionError


class Late(AsyncSampler):
    """The first episode succeeds."""

    async def run(self) -> Termination:
        if self.task.seq > 0:
            raise LookupError("no more world")
        return Termination.ANSWERED


async def test_a_faulty_sampler_class_ends_the_process_after_three_tasks_with_a_no_restart_status(
    mongod: Mongod, store: Store, tmp_path: Path
) -> None:
    await import_tasks(store, 3, num_generations=1)
    await engine_is_up(store)
    mine = tmp_path / "mine.py"
    mine.write_text(MINE)
    flags = ["--run", store.run, "--model_name_or_path", str(MODEL), "--sampler", f"{mine}:Mine"]
    flags += ["--open_all_tasks", "true", "--log_level", "WARNING"]
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "sampler", "--db_connection_string", mongod.connection_string, *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    *met, last = [line for line in ended.stderr.splitlines() if "ERROR" in line]
    said = "AttributeError: 'TaskPayload' object has no attribute 'qurey'"
    line = f"{said}; at {mine}:7, in run: return self.task.payload.qurey"
    assert "3 tasks failed before any episode was scored" in last
    assert all(line in one for one in [*met, last]), ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.splitlines()) < 8, ended.stderr


async def test_a_class_whose_init_fails_fails_the_slot_and_is_named(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    async with running_sampler(store, Unborn, **OPTIONS) as service:
        await until(store.tasks.count_slots, lambda counts: counts["failures"] == 1)
        assert not service.done()
    (slot,) = (await the_task(store, "main:train:0:t0")).slots
    assert "LookupError: no world; at tests/sampler/test_own_samplers.py:" in (slot.error or "")
    record = await store.records.get("main:train:0:t0:0:1")
    assert record is not None
    assert record.termination == Termination.UNFORESEEN


async def test_a_sampler_that_worked_before_goes_on_and_the_task_is_set_aside(store: Store) -> None:
    await import_tasks(store, 2, num_generations=2)
    async with running_sampler(store, Late, **OPTIONS, max_failures=2, retry_delay_s=0.01, heartbeat_s=0.05) as service:
        counts = await until(store.tasks.count_slots, lambda counts: counts.get("failed") == 2)
        alarms = await until(lambda: _alarms(store), bool)
        assert not service.done()
    assert (counts["scored"], counts["failures"]) == (2, 2)
    assert 'in run: raise LookupError("no more world")' in alarms[0]
    (aside,) = (await read_status(store)).tasks_set_aside
    assert aside.startswith("task main:train:0:t1: 2 of its episodes met a bug; the last: ")


async def the_task(store: Store, name: str) -> Task:
    task = await store.tasks.get(name)
    assert task is not None
    return task


class Particular(AsyncSampler):
    """Wants metadata that some tasks have."""

    async def run(self) -> Termination:
        self.own_payload(Level)
        return Termination.ANSWERED


async def test_settings_that_fit_no_task_end_the_process_before_all_tasks_fail(store: Store) -> None:
    await import_tasks(store, 20, num_generations=2)
    with pytest.raises(ExceptionGroup) as caught:
        async with running_sampler(store, Particular, **OPTIONS) as service:
            await until(lambda: _is_over(service), bool)
    (error,) = one_by_one(caught.value)
    assert isinstance(error, ConfigError)
    assert str(error).startswith(
        "3 tasks failed before any episode was scored; main:train:0:t0: ConfigError: task main:"
    )
    assert (await store.tasks.count_slots())["failed"] <= 6


class Down(AsyncSampler):
    """No engine answers."""

    async def run(self) -> Termination:
        raise EngineUnavailable("http://e/generate: HTTP 503: loading")


class Refused(AsyncSampler):
    """The engine refuses every prompt, as one does whose tokenizer is another model's."""

    async def run(self) -> Termination:
        raise EngineRefused("http://e/generate: HTTP 400: input_ids[3] is 1238")


async def test_an_engine_that_refuses_every_prompt_ends_the_process_before_all_tasks_fail(store: Store) -> None:
    await import_tasks(store, 20, num_generations=2)
    with pytest.raises(ExceptionGroup) as caught:
        async with running_sampler(store, Refused, **OPTIONS) as service:
            await until(lambda: _is_over(service), bool)
    (error,) = one_by_one(caught.value)
    assert isinstance(error, ConfigError)
    assert "3 tasks failed before any episode was scored" in str(error)
    assert "input_ids[3] is 1238" in str(error)


async def test_failures_of_all_episodes_are_told_in_the_log_and_as_an_alarm(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await import_tasks(store, 12, num_generations=2)
    async with running_sampler(store, Down, **OPTIONS, heartbeat_s=0.05):
        (alarm,) = await until(lambda: _alarms(store), bool)
    said = " episodes failed, and none was scored; the last: EngineUnavailable: http://e/generate: HTTP 503: loading"
    assert alarm.endswith(said)
    errors = [line.getMessage() for line in caplog.records if line.levelname == "ERROR"]
    assert [text for text in errors if "none was scored" in text] == [f"8{said}"]


async def _alarms(store: Store) -> list[str]:
    return [alarm for worker in (await read_status(store)).workers for alarm in worker["alarms"]]


async def test_a_task_that_does_not_fit_among_others_fails_alone(store: Store) -> None:
    levels: list[dict[str, int]] = [{"level": 1}, {}, {}, {}, {}, {"level": 1}]
    tasks = [make_task(seq, num_generations=1) for seq in range(len(levels))]
    payloads = [TaskPayload(query="?", metadata=level) for level in levels]
    await store.tasks.insert_new(
        [task.model_copy(update={"payload": payload}) for task, payload in zip(tasks, payloads, strict=True)]
    )
    async with running_sampler(store, Particular, **OPTIONS):
        await until(store.tasks.count_slots, lambda counts: (counts.get("scored"), counts.get("failed")) == (2, 4))


async def test_forks_that_cannot_be_played_end_no_sampler(store: Store) -> None:
    """They say nothing of its settings for the run's own tasks, which it goes on to play."""
    origin = ForkOrigin(dispatch="r:0", sampling_params={"temperature": 1.0})
    payload = TaskPayload(query="?", answer="4", fork=origin)
    forks = [make_task(seq, num_generations=1, split=FORK_SPLIT) for seq in range(5)]
    await store.tasks.insert_new([fork.model_copy(update={"payload": payload}) for fork in forks])
    async with running_sampler(store, Late, **OPTIONS) as service:
        await until(store.tasks.count_slots, lambda counts: counts.get("failed") == 5)
        await import_tasks(store, 1, num_generations=1)
        await until(store.tasks.count_slots, lambda counts: counts.get("scored") == 1 or service.done())
        assert not service.done()
    task = await store.tasks.get(forks[0].id)
    assert task is not None
    assert "Late cannot go on from a turn" in (task.slots[0].error or "")


async def _is_over(service: "asyncio.Task[None]") -> bool:
    return service.done()
