"""The trainer's side of evaluation, over the real store: it queues, it reads, it never waits."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shared.processes.mongod import Mongod
from shared.store import Store
from tests.shared.builders import make_task
from tests.shared.episodes import announce
from tests.shared.rounds import import_set, play
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.run.evaluation import Evaluation
from trainer.settings.config import TrainerConfig

SCORES: dict[str, list[float | None]] = {"t0": [1.0, 0.0], "t1": [1.0, 1.0], "t2": [0.0, 0.0]}


@pytest.fixture
def bridge(mongod: Mongod, store: Store) -> Iterator[StoreBridge]:
    with StoreBridge(mongod.connection_string, store.run) as bridge:
        yield bridge


def evaluation(bridge: StoreBridge, parallel: Parallel, *, eval_steps: int = 2) -> Evaluation:
    values = {"run": "r", "db_connection_string": "x", "model_name_or_path": "m", "eval_steps": eval_steps}
    return Evaluation(bridge, TrainerConfig.model_validate(values), parallel)


async def publish(store: Store, evaluated: Evaluation, step: int) -> dict[str, float]:
    await announce(store, step)
    return await asyncio.to_thread(evaluated.after, step)


async def test_rounds_are_queued_in_their_turn_and_logged_once_when_they_have_ended(
    store: Store, bridge: StoreBridge, alone: Parallel, tmp_path: Path
) -> None:
    await announce(store, 0)
    await import_set(store)
    evaluated = evaluation(bridge, alone)
    await asyncio.to_thread(evaluated.begin, 0, tmp_path / "metrics.jsonl")
    assert await publish(store, evaluated, 1) == {}
    assert await store.evaluation.open_versions("main") == [0]
    assert await publish(store, evaluated, 2) == {}
    assert await store.evaluation.open_versions("main") == [0, 2]
    await play(store, SCORES, 0)
    first = await publish(store, evaluated, 3)
    assert (first["eval/step"], first["eval/version"], first["eval/pass_at_1"], first["eval/reward"]) == (
        0,
        0,
        0.5,
        0.5,
    )
    assert first["eval/reward_low"] < 0.5 < first["eval/reward_high"]
    assert first["eval_reward_by_source/boxes"] == first["eval_pass_at_1_by_source/boxes"] == 0.5
    await play(store, SCORES, 2)
    assert (await publish(store, evaluated, 4))["eval/step"] == 2
    assert await publish(store, evaluated, 5) == {}
    assert await store.evaluation.open_versions("main") == [4]


async def test_a_resume_gives_up_withdrawn_rounds_queues_what_a_death_left_out_and_logs_nothing_twice(
    store: Store, bridge: StoreBridge, alone: Parallel, tmp_path: Path
) -> None:
    for step in (0, 1, 2, 3, 4):
        await announce(store, step)
    await import_set(store)
    await play(store, SCORES, 0)
    await store.evaluation.queue_round("main", 4)
    await store.versions.withdraw_after("main", 2, 1)
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(json.dumps({"step": 1, "eval/version": 0.0}) + "\n" + json.dumps({"step": 2}) + "\n")
    evaluated = evaluation(bridge, alone)
    await asyncio.to_thread(evaluated.begin, 2, metrics)
    assert await store.evaluation.open_versions("main") == [2]
    await play(store, SCORES, 2)
    assert (await publish(store, evaluated, 3))["eval/version"] == 2
    assert await publish(store, evaluated, 4) == {}


async def test_without_a_set_without_turns_and_on_other_ranks_nothing_is_queued(
    store: Store, bridge: StoreBridge, alone: Parallel, tmp_path: Path
) -> None:
    other = replace(alone, everyone=replace(alone.everyone, rank=1))
    await announce(store, 0)
    for silent in (evaluation(bridge, alone), evaluation(bridge, alone, eval_steps=0), evaluation(bridge, other)):
        await asyncio.to_thread(silent.begin, 0, tmp_path / "metrics.jsonl")
        assert await publish(store, silent, 2) == {}
        await store.tasks.insert_new([make_task(0, split="eval", at_version=0)])  # the set, from the second on
        assert await store.evaluation.open_versions("main") == [0]
