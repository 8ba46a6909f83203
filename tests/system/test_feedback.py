"""Feedback that comes after a restart of everything trains the episode it belongs to, once."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shared.documents import Feedback
from shared.documents.states import RecordStatus
from shared.store import Store
from tandem.audit.run import Check, audit
from tests.system.processes import ROOT, Run, verify
from tests.system.test_loop import queue_tasks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.thorough
async def test_feedback_after_a_restart_of_everything_trains_its_episode_once(tmp_path: Path) -> None:
    with Run(tmp_path, groups_per_step=1, max_steps=2) as run:
        del run.sampler_flags["mcp_manager_url"]
        run.sampler_flags |= {"sampler": "tests.system.questioner:Questioner", "feedback_deadline_s": "864000"}
        run.sampler_flags |= {"max_new_tokens": "8", "default_scorer": "exact_match"}
        run.trainer_flags["drop_zero_advantage"] = "false"  # a step of equal rewards counts too
        await queue_tasks(run, num_generations=2, first=2)
        start(run, "sampler0")
        await run.until("every episode to wait for its score", all_wait)
        for name in ("sampler0", "trainer", "keeper"):
            run.end(name, signal.SIGKILL)
        assert run.mongod.process is not None
        run.mongod.process.kill()
        run.mongod.process.wait(60)
        run.mongod.start()

        async with Store.open(run.mongod.connection_string, run.name) as store:
            assert await all_wait(store)
            await assert_sound(store)
            records = sorted(episode.record for episode in await store.feedback.waiting(10))
            assert [record.rpartition(":")[2] for record in records] == ["1"] * 4, "none was played twice"
            same = [tandem(run, records[0], "1", "--comment", "solved it", "--source", "ann") for _ in range(3)]
            assert [process.wait(120) for process in same] == [0, 0, 0]
            assert tandem(run, records[0], "0.5").wait(120) == 2, "another score is refused"
            await store.feedback.give(records[1], Feedback(score=0.0))  # and the process dies before the record's write
            assert await all_but(store, scored=2)
            await assert_sound(store)

        start(run, "sampler1")
        await run.until("the first group to be trained", lambda store: trained(store, 2))
        many = [{"record": record, "score": float(k), "comment": f"no. {k}"} for k, record in enumerate(records[2:])]
        (tmp_path / "feedback.jsonl").write_text("\n".join(map(json.dumps, many)))
        assert tandem(run, "--file", str(tmp_path / "feedback.jsonl")).wait(120) == 0
        assert run.wait("trainer") == 0, run.log("trainer")
        assert tandem(run, records[0], "1").wait(120) == 0, "given again"
        assert run.end("sampler1") == 0, run.log("sampler1")

        async with Store.open(run.mongod.connection_string, run.name) as store:
            await assert_sound(store)
            data = {d.record: d for d in await store.data.find({})}
            assert {record: data[record].reward for record in data} == dict(zip(records, [1, 0, 0, 1], strict=True))
            assert [data[record].trained_steps for record in records] == [[1], [1], [2], [2]]
            comments = []
            for record in (await store.records.get_many(records)).values():
                assert (record.status, record.trained_count) == (RecordStatus.READY, 1)
                comments += [given["comment"] for given in record.reward_details["feedback"]]
            assert {*comments} == {None, "no. 0", "no. 1", "solved it"}
        verify(run)


def start(run: Run, sampler: str) -> None:
    run.start_trainer()
    run.start_keeper()
    run.start_sampler(sampler)


def tandem(run: Run, *arguments: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tandem", "feedback", run.name, *arguments]
    flags = ["--db_connection_string", run.mongod.connection_string]
    with (run.folder / "tandem.log").open("ab") as log:
        return subprocess.Popen([*command, *flags], cwd=ROOT, stdout=log, stderr=log)


async def all_wait(store: Store) -> bool:
    return await all_but(store, scored=0)


async def all_but(store: Store, *, scored: int) -> bool:
    counts = await store.tasks.count_slots()
    return (counts.get("waiting", 0), counts.get("scored", 0)) == (4 - scored, scored)


async def trained(store: Store, records: int) -> bool:
    return len(await store.data.find({"status": "trained"})) == records


async def assert_sound(store: Store) -> None:
    report = await audit(store)
    assert report.ok, report
    assert report.results[Check.RECORDS].examined > 0
