"""`kill -9` of samplers while they score groups: each group gets its scores once, and no failure becomes a number."""

import signal
from pathlib import Path

import pytest

from shared.documents.states import TaskStatus
from shared.store import Store
from tests.system.processes import ROOT, Run
from tests.system.test_kills import assert_sound, nothing_open
from tests.system.test_loop import queue_tasks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WEIGHT = 0.5


async def being_scored(store: Store) -> bool:
    where = {"status": TaskStatus.COMPLETED.value, "scoring.attempt": {"$gt": 0}, "group_scores": None}
    return await store.database["tasks"].find_one(where) is not None


@pytest.mark.thorough
async def test_groups_that_were_being_scored_when_their_samplers_were_killed_are_scored_once(tmp_path: Path) -> None:
    with Run(tmp_path, max_steps=3) as run:
        run.sampler_flags |= {
            "lease_s": "4",
            "scorer_modules": f'["{ROOT}/tests/system/moody_judges.py"]',
            "retry_delay_s": "0.1",
            "max_failures": "1000",
        }
        await queue_tasks(run)
        async with Store.open(run.mongod.connection_string, run.name) as store:
            scorers = [{"name": "math", "weight": 1.0}, {"name": "moody", "weight": WEIGHT}]
            change = {"$set": {"payload.scorers": scorers, "payload.scorer": None}}
            await store.database["tasks"].update_many({"split": "train"}, change)
        run.start_all()
        for kill in range(3):
            await run.until("a group that is being scored", being_scored)
            run.start_sampler(f"sampler{kill + 1}")
            run.end(f"sampler{kill}", signal.SIGKILL)
        assert run.wait("trainer") == 0, run.log("trainer")
        await run.until("every opened task to be settled", nothing_open)
        assert run.end("sampler3") == 0, run.log("sampler3")
        await assert_sound(run)
        async with Store.open(run.mongod.connection_string, run.name) as store:
            settled = [one async for one in store.database["tasks"].find({"status": TaskStatus.SETTLED.value})]
            assert len(settled) >= 6
            assert max(one["scoring"]["attempt"] for one in settled) > 1, "some were begun again"
            for task in settled:
                (of_group,) = task["group_scores"]
                for slot, value in zip(task["slots"], of_group["values"], strict=True):
                    if slot["status"] != "scored":
                        assert value is None
                        continue
                    record = await store.records.get(slot["record_id"])
                    assert record is not None
                    assert record.score == slot["score"]
                    own = slot["score"] - WEIGHT * value  # of the scorer math
                    assert min(abs(own), abs(own - 1)) < 1e-12
