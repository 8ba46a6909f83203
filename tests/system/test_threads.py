"""The real loop with parallel drafts, a fork and a combining turn; a sampler is killed while some of them are open."""

import signal
from pathlib import Path

import pytest

from shared.documents.states import DispatchStatus, RecordStatus
from shared.episodes.state import EpisodeState
from shared.store import Store
from tandem.audit.run import Check, audit
from tests.system.drafts import DRAFTS
from tests.system.processes import Run, verify
from tests.system.test_loop import queue_tasks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.thorough
async def test_episodes_with_threads_train_exactly_although_a_sampler_is_killed(tmp_path: Path) -> None:
    with Run(tmp_path, max_steps=2) as run:
        del run.sampler_flags["mcp_manager_url"]
        run.sampler_flags |= {"sampler": "tests.system.drafts:CombinedDrafts", "max_new_tokens": "8"}
        run.sampler_flags |= {"advantage": "reward_to_go", "max_concurrent_episodes": "4"}
        await queue_tasks(run, first=12)
        run.start_trainer()
        run.start_keeper()
        run.start_sampler("sampler0")
        await run.until("an episode with an open request while another thread goes on", one_open_among_others)
        run.end("sampler0", signal.SIGKILL)
        run.start_sampler("sampler1")
        assert run.wait("trainer") == 0, run.log("trainer")
        assert run.end("sampler1") == 0, run.log("sampler1")
        async with Store.open(run.mongod.connection_string, run.name) as store:
            report = await audit(store)
            assert report.ok, report
            assert report.results[Check.COMPLETE].examined > 0
            trained = await store.data.find({"status": "trained"})
            assert {step for data in trained for step in data.trained_steps} == {1, 2}
            for data in trained:
                record = await store.records.get(data.record)
                assert record is not None
                state = EpisodeState(record, (await store.records.dispatches_of([data.record]))[data.record])
                assert {thread.name for thread in state.threads} == {
                    None,
                    "fork",
                    *(f"draft-{k}" for k in range(DRAFTS)),
                }
                assert len(state.turns) == 2 * DRAFTS + 2 == len(data.dispatches)
                for k in range(DRAFTS):  # drafts that say the same may continue one another's turns
                    first, second = (turn for turn in state.turns if turn.thread == f"draft-{k}")
                    assert second.shared >= first.length
            await assert_the_killed_episodes_are_not_trained(store)
        print(verify(run))  # the largest difference, for who asks with -s


async def one_open_among_others(store: Store) -> bool:
    found = store.database["dispatched_sampling_tasks"]
    running = {"status": DispatchStatus.RUNNING.value, "finished_at": None}
    for first in await found.find(running).to_list():
        others = {"record": first["record"], "thread": {"$ne": first.get("thread")}, "turn": {"$gt": DRAFTS - 1}}
        if await found.count_documents(others) > 0:
            return True
    return False


async def assert_the_killed_episodes_are_not_trained(store: Store) -> None:
    lost = [r for r in await store.database["records"].find({"attempt": 1}).to_list() if r["status"] == "abandoned"]
    assert lost, "no episode was lost"
    for record in lost:
        assert not await store.data.find({"record": record["_id"]})
        dispatches = (await store.records.dispatches_of([record["_id"]]))[record["_id"]]
        assert not [d.id for d in dispatches if d.status is DispatchStatus.RUNNING]
    assert {RecordStatus(r["status"]) for r in lost} == {RecordStatus.ABANDONED}
