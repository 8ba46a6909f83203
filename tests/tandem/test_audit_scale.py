"""The audit of a large run: in batches and in several processes it finds what it finds in a small one."""

import multiprocessing
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Any

import pytest

from shared.errors import TandemError
from shared.processes.mongod import Mongod
from shared.store import Store
from tandem.audit.processes import Processes, examined
from tandem.audit.run import AuditOptions, Check, audit, scope_of
from tandem.launch.processes import start_time
from tests.conftest import ROOT
from tests.process_ends import assert_end
from tests.shared.episodes import announce, train, whole_run
from tests.tandem.test_audit import CORRUPTIONS, TASK


@pytest.mark.slow
async def test_several_processes_find_what_one_finds(mongod: Mongod, store: Store) -> None:
    await whole_run(store, tasks=7)
    await store.database["records"].update_one({"_id": "main:train:0:t5:0:1"}, {"$set": {"score": 0.5}})
    await store.database["record_data"].update_many({"seq": 3}, {"$set": {"digest": "0"}})
    alone = await audit(store)
    processes = Processes(mongod.connection_string, 2, least_tasks=1)
    assert {check for check, result in alone.results.items() if result.violations} == {Check.RECORDS, Check.TOKENS}
    assert (await audit(store, processes=processes)).to_json() == alone.to_json()
    assert multiprocessing.active_children() == []


async def test_what_a_process_cannot_read_ends_the_audit_with_its_reason(mongod: Mongod, store: Store) -> None:
    """The groups are read in two processes from a run that does not exist."""
    await whole_run(store, tasks=1)

    async def no_batches() -> AsyncIterator[Sequence[str]]:
        yield [TASK]

    scope = await scope_of(store, AuditOptions())
    elsewhere = Processes("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100", 2, least_tasks=1)
    with pytest.raises(TandemError, match=r"127\.0\.0\.1:1"):
        async for _ in examined(store, no_batches(), scope, elsewhere):
            pass
    assert multiprocessing.active_children() == []


def test_a_process_of_an_audit_ends_with_its_parent_also_if_that_is_killed() -> None:
    program = """
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor
from tandem.audit.processes import _begin
from tandem.audit.scope import AuditScope
given = ("mongodb://127.0.0.1:1", "r", AuditScope(False, {}, {}))
pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_begin, initargs=given)
print(pool.submit(os.getpid).result(), flush=True)
time.sleep(600)  # until it is killed
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert start_time(child) is not None
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert_end([child])


async def test_each_violation_is_found_in_any_group_of_a_run_of_many_batches(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of two groups, and steps compared two at a time. What is wrong has the group's name."""
    groups = 7
    await whole_run(store, tasks=groups)
    for step in range(2, groups + 1):
        await train(store, step)
        await announce(store, step)
    monkeypatch.setattr("tandem.audit.run.GROUPS_AT_ONCE", 2)
    monkeypatch.setattr("tandem.audit.steps.STEPS_AT_ONCE", 2)
    intact = await audit(store)
    assert intact.ok, intact
    random = Random(0)
    everywhere = ("policy_versions", "tool_schemas", "run_rules")
    for what, (check, (collection, where, change)) in CORRUPTIONS.items():
        if collection in everywhere:
            continue
        number = random.randrange(groups)
        where, change = _elsewhere(where, number), _elsewhere(change, number)
        documents = store.database[collection]
        before = await documents.find_one(where)
        assert before is not None, what
        await (documents.update_one(where, change) if change else documents.delete_one(where))
        report = await audit(store)
        await documents.replace_one({"_id": before["_id"]}, before, upsert=True)
        result = report.results[check]
        assert result.violations, (what, number)
        assert check is Check.ACCOUNTS or f":t{number}" in result.examples[0] or "other" in result.examples[0], what
    assert (await audit(store)).to_json() == intact.to_json()


def _elsewhere(value: Any, number: int) -> Any:
    """The same of another group, and of the step that trained it."""
    if isinstance(value, dict):
        return {name: _elsewhere(one, number) for name, one in value.items()}
    if isinstance(value, list):
        return [_elsewhere(one, number) for one in value]
    if not isinstance(value, str):
        return value
    return value.replace(":t0", f":t{number}").replace("main:1:1", f"main:{number + 1}:1")
