"""`tandem audit --since`: what is new is examined, what was examined is not, and marks that go wrong later are found."""

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shared.documents.packed import pack_ints
from shared.documents.run import Admission
from shared.documents.states import DataStatus
from shared.errors import ConfigError
from shared.store import Store
from tandem.audit.position import AuditPosition
from tandem.audit.report import AuditReport, Check
from tandem.audit.run import AuditOptions, audit
from tandem.audit.since import audit_since
from tests.shared.builders import claim, make_task
from tests.shared.episodes import announce, play, settle, train, whole_run

LIVE = AuditOptions(running=True)
ADMISSION = Admission(groups_per_step=1, max_staleness=0)


async def begin(store: Store, options: AuditOptions = LIVE) -> AuditPosition:
    """A run of two groups, the first of them trained, and its position after a whole audit."""
    await store.runs.start_trainer("main", ADMISSION)
    await whole_run(store)
    report, position = await audit_since(store, None, options)
    assert report.ok, report
    assert position is not None
    return position


async def audit_again(
    store: Store, position: AuditPosition, options: AuditOptions = LIVE
) -> tuple[AuditReport, AuditPosition]:
    report, reached = await audit_since(store, position, options)
    assert reached is not None
    return report, reached


async def play_group(store: Store, seq: int) -> str:
    await store.tasks.insert_new([make_task(seq)])
    for score in (1.0, 0.0):
        await play(store, await claim(store), score)
    await settle(store)
    return f"main:train:0:t{seq}"


def violations(report: AuditReport) -> set[Check]:
    return {check for check, result in report.results.items() if result.violations}


@pytest.mark.parametrize("running", [True, False])
async def test_a_settled_group_is_examined_once_and_a_new_one_at_the_next_audit(store: Store, running: bool) -> None:
    options = AuditOptions(running=running)
    position = await begin(store, options)
    report, position = await audit_again(store, position, options)
    assert report.ok
    assert (report.counts["groups settled since"], report.results[Check.TOKENS].examined) == (0, 0)
    await play_group(store, 7)
    report, position = await audit_again(store, position, options)
    assert report.ok, report
    assert (report.counts["groups settled since"], report.counts["tasks opened"]) == (1, 1)
    assert report.results[Check.SAMPLED].examined == 12
    assert report.results[Check.TOOLS].examined == 1
    assert (await audit_again(store, position, options))[0].counts["groups settled since"] == 0


async def test_a_group_that_is_seen_after_one_that_was_settled_later_is_examined(store: Store) -> None:
    position = await begin(store)
    task = await play_group(store, 7)
    earlier = position.settled_at - timedelta(seconds=20)
    await store.database["tasks"].update_one({"_id": task}, {"$set": {"settled_at": earlier}})
    assert (await audit_again(store, position))[0].counts["groups settled since"] == 1


async def test_a_group_under_way_is_examined_every_time(store: Store) -> None:
    position = await begin(store)
    await store.tasks.insert_new([make_task(7)])
    held = await claim(store)
    for _ in range(2):
        report, position = await audit_again(store, position)
        assert report.ok
        assert report.counts["slots leased"] == 1
    assert violations((await audit_again(store, position, AuditOptions()))[0]) == {Check.ENDED}
    await play(store, held, 1.0)
    await store.database["records"].update_one({"_id": held.record_id}, {"$set": {"score": 0.5}})
    assert violations((await audit_again(store, position))[0]) == {Check.RECORDS}


async def test_a_violation_is_found_again_until_it_is_repaired(store: Store) -> None:
    position = await begin(store)
    task = await play_group(store, 7)
    dispatches = store.database["dispatched_sampling_tasks"]
    where = {"_id": f"{task}:0:1:1"}
    before = await dispatches.find_one(where)
    assert before is not None
    await dispatches.update_one(where, {"$set": {"prompt_ids": pack_ints([7, 99])}})
    for _ in range(2):
        report, position = await audit_again(store, position)
        assert violations(report) == {Check.TOKENS}
        assert position.again == [task]
    await dispatches.replace_one(where, before)
    report, position = await audit_again(store, position)
    assert report.ok
    assert position.again == []


async def test_the_first_audit_gives_no_position_where_it_finds_violations(store: Store) -> None:
    await whole_run(store)
    await store.database["records"].delete_one({})
    report, position = await audit_since(store, None, AuditOptions())
    assert not report.ok
    assert position is None


async def test_what_was_deleted_after_it_was_examined_is_found_by_an_audit_of_the_whole_run(store: Store) -> None:
    position = await begin(store)
    await store.database["dispatched_sampling_tasks"].delete_one({"turn": 0})
    assert (await audit_again(store, position))[0].ok
    assert violations(await audit(store, running=True)) == {Check.TOKENS, Check.COMPLETE}


# ---------------------------------------------------------------------- marks


async def rewind(store: Store, step: int, *, generation: int) -> None:
    """As a trainer does that starts from this step."""
    await store.data.rewind("main", step, max_trained_count=1)
    await store.versions.withdraw_after("main", step, generation)


async def test_marks_of_a_running_run_are_compared_up_to_the_last_step_that_was_reported(store: Store) -> None:
    position = await begin(store)
    assert position.marks["main"].step == 1
    await train(store, 2)
    await announce(store, 2)
    report, position = await audit_again(store, position)
    assert report.ok
    assert report.results[Check.MARKS].examined == 2
    assert position.marks["main"].step == 2
    report, position = await audit_again(store, position)
    assert (report.results[Check.MARKS].examined, report.results[Check.ACCOUNTS].examined) == (0, 0)


async def test_a_mark_that_is_not_the_records_is_found_in_a_new_step_until_it_is_repaired(store: Store) -> None:
    position = await begin(store)
    await train(store, 2)
    await announce(store, 2)
    records = store.database["records"]
    await records.update_many({"last_trained_step": 2}, {"$set": {"trained_count": 0, "last_trained_step": None}})
    for _ in range(2):
        report, position = await audit_again(store, position)
        assert violations(report) == {Check.MARKS}
    await records.update_many({"task": "main:train:0:t1"}, {"$set": {"trained_count": 1, "last_trained_step": 2}})
    assert (await audit_again(store, position))[0].ok


async def test_a_mark_that_a_resume_did_not_undo_is_found(store: Store) -> None:
    """On the record alone, whose data is released, and on neither document above the last step that was compared."""
    position = await begin(store)
    assert await store.runs.start_trainer("main", ADMISSION) == 2, "from step 0 again"
    await rewind(store, 0, generation=2)
    report, _ = await audit_again(store, position)
    assert report.ok, report
    assert report.results[Check.MARKS].examined == 2
    await store.versions.announce("main", 5, "/weights/5", {}, trainer_generation=2)
    record = {"_id": "main:train:0:t0:0:1"}
    await store.database["records"].update_one(record, {"$set": {"trained_count": 1, "last_trained_step": 1}})
    assert violations((await audit_again(store, position))[0]) == {Check.MARKS}
    await store.database["records"].update_one(record, {"$set": {"trained_count": 1, "last_trained_step": None}})
    assert violations((await audit_again(store, position))[0]) == {Check.MARKS}, (
        "the undone step's report names its group"
    )


async def test_marks_that_a_new_trainer_has_yet_to_undo_are_no_violation(store: Store) -> None:
    position = await begin(store)
    await store.runs.start_trainer("main", ADMISSION)
    report, position = await audit_again(store, position)
    assert report.ok, report
    assert position.marks["main"].step <= 0
    assert violations((await audit_again(store, position, AuditOptions()))[0]) == {Check.ACCOUNTS}, (
        "nobody undoes them now"
    )


async def test_a_group_that_an_earlier_step_trained_too_is_found(store: Store) -> None:
    """Its marks were lost after the audit of step 1; step 2 trained it again, and every document is in order."""
    position = await begin(store)
    lost: dict[str, Any] = {"trained_count": 0, "last_trained_step": None}
    first = {"task": "main:train:0:t0"}
    await store.database["records"].update_many(first, {"$set": lost | {"revision": 0}})
    ready = {"trained_steps": [], "status": DataStatus.READY.value, "claim": None}
    await store.database["record_data"].update_many(first, {"$set": lost | ready})
    await train(store, 2)
    await announce(store, 2)
    report, _ = await audit_again(store, position)
    assert report.results[Check.ACCOUNTS].examples == [
        "policy main: steps 1, 2 trained main:train:0:t0; expected at most 1"
    ]


async def test_a_step_beyond_the_newest_weights_is_compared_again(store: Store) -> None:
    position = await begin(store)
    await train(store, 2)
    report, position = await audit_again(store, position)
    assert report.ok, "while the run is active"
    assert position.marks["main"].step == 2
    assert violations((await audit_again(store, position, AuditOptions()))[0]) == {Check.SURVIVING}
    await announce(store, 2)
    assert (await audit_again(store, position, AuditOptions()))[0].ok


# ---------------------------------------------------------------------- the file


async def test_the_file_has_the_position_and_another_runs_is_refused(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "run.audit"
    assert AuditPosition.read(file) is None
    position = await begin(store)
    position.write(file)
    assert AuditPosition.read(file) == position
    run = await store.runs.get()
    position.check(run, store.run)
    with pytest.raises(ConfigError, match="expected run other"):
        position.check(run, "other")
    begun_again = position.model_copy(update={"created_at": position.settled_at - timedelta(days=1)})
    with pytest.raises(ConfigError, match="remove it to examine the whole run"):
        await audit_since(store, begun_again, replace(LIVE, running=False))
    file.write_text(json.dumps({"run": "r"}))
    with pytest.raises(ConfigError, match="found no position of an audit"):
        AuditPosition.read(file)


async def test_a_violation_between_two_writes_is_none_and_that_of_a_settled_group_is_found_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of a group under way gets its score after the first examination."""
    await store.tasks.insert_new([make_task(0)])
    held = await claim(store)
    await play(store, held, 1.0)
    records = store.database["records"]
    await records.update_one({"_id": held.record_id}, {"$set": {"score": None}})
    pauses: list[float] = []

    async def written_meanwhile(delay_s: float) -> None:
        pauses.append(delay_s)
        await records.update_one({"_id": held.record_id}, {"$set": {"score": 1.0}})

    monkeypatch.setattr("tandem.audit.groups.asyncio", SimpleNamespace(gather=asyncio.gather, sleep=written_meanwhile))
    assert (await audit(store, running=True)).ok
    assert len(pauses) == 1
    await play(store, await claim(store), 0.0)
    await settle(store)
    await store.database["record_data"].update_many({}, {"$set": {"digest": "0"}})
    assert violations(await audit(store, running=True)) == {Check.TOKENS}
    assert len(pauses) == 1
