"""The real loop in self-play against version 0, which one engine serves alone; that engine is killed and comes back."""

import json
import signal
from pathlib import Path

import pytest

from shared.documents.states import SlotStatus
from shared.store import Store
from tandem.audit.run import audit
from tandem.evaluation.league import league_of
from tests.system.processes import Run, verify
from tests.system.test_loop import queue_tasks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ACTORS = {"Me": {"policy": "main"}, "Past": {"policy": "main", "at": 0}}
LINEUPS = [{"X": "Me", "O": "Past"}, {"X": "Past", "O": "Me"}]


@pytest.mark.thorough
async def test_a_policy_trains_against_its_first_version_although_that_ones_engine_goes_away(tmp_path: Path) -> None:
    with Run(tmp_path, max_steps=20) as run:
        del run.sampler_flags["mcp_manager_url"]
        run.sampler_flags |= {"sampler": "tests.system.selfplay:Match", "max_new_tokens": "8", "rounds": "X -> O -> X"}
        run.sampler_flags |= {"actors": json.dumps(ACTORS), "lineups": json.dumps(LINEUPS)}
        run.trainer_flags["drop_zero_advantage"] = "false"  # a step of equal rewards counts too
        await queue_tasks(run, first=60)
        run.start_trainer()
        run.start_keeper()
        run.keeper_flags = {"serve_version": "0"}
        run.start_keeper(name="pinned")
        run.start_sampler()
        await run.until("a step that was trained", has_trained)
        run.end("pinned", signal.SIGKILL)
        await run.until("a slot that waits for version 0", is_released)
        run.start_keeper(name="pinned")
        assert run.wait("trainer") == 0, run.log("trainer")
        assert run.end("sampler") == 0, run.log("sampler")
        async with Store.open(run.mongod.connection_string, run.name) as store:
            report = await audit(store)
            assert report.ok, report
            trained = await store.data.find({"status": "trained"})
            assert {step for data in trained for step in data.trained_steps} == set(range(1, 21))
            assert max(version for data in trained for version in data.versions) > 0
            sampled_past: set[int] = set()
            for data in trained:
                turns = (await store.records.dispatches_of([data.record]))[data.record]
                mine = "X" if int(data.record.split(":")[-2]) % 2 == 0 else "O"
                assert {turn.thread for turn in turns if turn.policy == "main"} == {mine}
                past = [turn for turn in turns if turn.policy == "main@0"]  # none if the first turn ended the episode
                sampled_past |= {version for turn in past for version, _ in turn.weight_versions}
                assert {used.id for used in data.dispatches} == {turn.id for turn in turns if turn.policy == "main"}
            assert sampled_past == {0}
            await assert_no_slot_failed_for_the_engine(store)
            league = league_of(await store.questions.seated_records("train", 1000))
            assert "main 0" in league.games
        print(verify(run))  # the largest difference, for who asks with -s


async def has_trained(store: Store) -> bool:
    return bool(await store.data.find({"trained_count": 1}))


async def is_released(store: Store) -> bool:
    """Without a failure; to be claimed later."""
    tasks = await store.database["tasks"].find({"status": "running"}).to_list()
    now = await store.questions.server_time()
    slots = [slot for task in tasks for slot in task["slots"] if slot["attempt"] > 0]
    return any(s["status"] == SlotStatus.OPEN and s["failures"] == 0 and s["free_at"] > now for s in slots)


async def assert_no_slot_failed_for_the_engine(store: Store) -> None:
    """A request that was under way when the engine died may count; an engine that is not there does not."""
    for record in await store.database["records"].find({"status": "failed"}).to_list():
        assert "no engine is up that serves version" not in (record["error"] or "")
    assert not [
        slot
        for task in await store.database["tasks"].find({}).to_list()
        for slot in task["slots"]
        if slot["failures"] > 2
    ]
