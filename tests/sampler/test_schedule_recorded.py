"""What `python -m scripts.bench.schedule` reads of a recorded run."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from scripts.bench.scheduling.engine import EngineModel, Request, SimulatedEngine
from scripts.bench.scheduling.recorded import TimedReply, fitted, read
from scripts.bench.scheduling.workload import SimulatedEpisode, SimulatedTurn
from shared.documents import Claim, Record
from shared.documents.run import Admission, PolicyVersion, TrainedStep
from shared.documents.states import TaskStatus
from shared.errors import DataError
from shared.store import Store
from tests.shared.builders import make_answer, make_task

GROUPS, SIZE = 12, 2
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def replies_of(model: EngineModel, count: int, seed: int) -> list[TimedReply]:
    """What would be recorded of an engine that gets random requests."""
    rng, engine = np.random.default_rng(seed), SimulatedEngine(model)
    began: dict[Request, float] = {}
    replies: list[TimedReply] = []

    def ended(until: float) -> None:
        while (end := engine.next_end()) is not None and end <= until:
            engine.advance(end)
            while (request := engine.pop_ended()) is not None:
                seconds = end - began[request] + model.overhead_s
                replies.append(TimedReply("http://e", began[request], seconds, request.fresh, request.output))

    for arrival in np.cumsum(rng.exponential(0.5, count)).tolist():
        ended(arrival)
        engine.advance(arrival)
        request = Request(100, int(rng.integers(0, 200)), int(rng.integers(20, 400)))
        began[request] = arrival
        engine.arrive(request)
    ended(float("inf"))
    return replies


def test_the_speed_of_an_engine_is_fitted_from_its_replies() -> None:
    model = EngineModel(0.01, 0.002, overhead_s=0.1)
    found, error = fitted(replies_of(model, 400, seed=0))
    assert error < 0.05
    for at_once in (1, 4, 16):
        expected = model.step_s + at_once * model.request_step_s
        assert found.step_s + at_once * found.request_step_s == pytest.approx(expected, rel=0.15)


def test_an_engine_with_the_fitted_speed_takes_as_long_as_the_recorded_one() -> None:
    """With prefills, which stop those that decode, the single speeds are uncertain; what a reply takes in the mean is not."""
    replies = replies_of(EngineModel(0.01, 0.002, prefill_s=0.001, overhead_s=0.1), 400, seed=0)
    found, _ = fitted(replies)
    again = replies_of(found, 400, seed=0)
    assert np.mean([reply.seconds for reply in again]) == pytest.approx(
        np.mean([reply.seconds for reply in replies]), rel=0.2
    )


def test_too_few_replies_are_refused() -> None:
    with pytest.raises(DataError, match="19 replies are recorded; expected 20"):
        fitted(replies_of(EngineModel(0.01), 19, seed=0))


async def write_run(store: Store) -> None:
    """`GROUPS` groups of `SIZE`, one after another, 20 s each, the last without data; two steps of 5, at 120 and 230 s.

    An episode has two turns: half a second after its claim one of 4 s and a tool of 6 s, and 10 s later one of 9.5 s.
    """
    await store.begin()
    await store.runs.start_trainer("main", Admission(groups_per_step=5, max_staleness=1, num_steps=2))
    for seq in range(GROUPS):
        settled = TaskStatus.SETTLED if seq < GROUPS - 1 else TaskStatus.ABANDONED
        task, at = make_task(seq), 20.0 * seq
        document = task.to_mongo() | {"status": settled.value, "completed_at": _at(at + 20), "settled_at": _at(at + 21)}
        for slot in document["slots"]:
            rid = f"{task.id}:{slot['traj_id']}:1"
            slot["record_id"] = rid
            record = Record.of(Claim(task=task, traj_id=slot["traj_id"], attempt=1), "w").to_mongo()
            await store.database["records"].insert_one(record | {"created_at": _at(at), "finished_at": _at(at + 20)})
            await _write_requests(store, rid, at, [6.0])
        await store.database["tasks"].insert_one(document)
    running = make_task(GROUPS).to_mongo() | {"status": TaskStatus.RUNNING.value}
    await store.database["tasks"].insert_one(running)
    for step, at in ((0, 0.0), (1, 120.0), (2, 230.0)):
        version = PolicyVersion(id=f"main:{step}", policy="main", version=step, step=step, path="p", files={})
        await store.database["policy_versions"].insert_one(version.to_mongo() | {"created_at": _at(at)})
        if step:
            await store.steps.add(
                TrainedStep(id=f"main:{step}:1", policy="main", step=step, trainer_generation=1, groups=[])
            )
            await store.steps.note_metrics(f"main:{step}:1", {"time/total_s": 100.0, "time/wait_s": 93.0})


async def _write_requests(store: Store, rid: str, at: float, tools_s: Sequence[float]) -> None:
    calls: list[dict[str, Any]] = [{"duration_s": seconds} for seconds in (*tools_s, 0.5)]
    version = int(at >= 122)
    for turn, (began, usage) in enumerate([(0.5, (40, 30, 8)), (10.5, (60, 48, 19))]):
        document = make_answer(rid).to_mongo() | {"_id": f"{rid}:{turn}", "turn": turn, "service": "http://e"}
        document |= {"usage": dict(zip(("prompt", "cached", "completion"), usage, strict=True))}
        document |= {"created_at": _at(at + began), "weight_versions": [[version, usage[2]]]}
        document |= {"tool_calls": calls} if turn == 0 else {}
        await store.database["dispatched_sampling_tasks"].insert_one(document)


def _at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


async def test_a_recorded_run_is_read_as_it_was(store: Store) -> None:
    """Calls of one turn run at once: the tools of a turn take as long as the slowest."""
    await write_run(store)
    recording = await read(store, "main")
    groups, model = recording.workload.groups, recording.model
    assert [group.task for group in groups] == [f"t{seq}" for seq in range(GROUPS)]
    assert [group.usable for group in groups] == [True] * (GROUPS - 1) + [False]
    assert set(groups[0].episodes) == {
        SimulatedEpisode((SimulatedTurn(40, 10, 8, 6.0), SimulatedTurn(60, 12, 19)), start_s=0.5)
    }
    assert (model.groups_per_step, model.max_staleness, model.steps, model.places) == (5, 1, 2, SIZE)
    assert (model.train_s, model.settle_s) == (7.0, 1.0)
    assert model.publish_s == pytest.approx(20.5), "version 1 was there at 120, and the next request was sent at 140.5"
    assert recording.step_s == pytest.approx(115.0)
    assert recording.fit_error < 0.01, "replies of 8 tokens took 4 s, those of 19 took 9.5 s"


async def test_a_run_without_a_step_is_refused(store: Store) -> None:
    await write_run(store)
    await store.database["policy_versions"].delete_many({"step": {"$gt": 0}})
    with pytest.raises(DataError, match="has taken no step"):
        await read(store, "main")
