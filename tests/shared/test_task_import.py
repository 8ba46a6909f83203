"""Imports of task files that fail, repeat, continue and overlap."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shared.processes.mongod import Mongod
from shared.store import Store
from shared.tasks.files import ImportResult, ImportTarget, import_task_file
from shared.tasks.line_errors import TaskFileError
from tests.conftest import ROOT
from tests.shared.lines_of_tasks import line, write


async def test_every_field_of_a_line_arrives(store: Store, tmp_path: Path) -> None:
    full = line(
        0,
        source="s",
        answer_schema="boxed",
        tools=["a"],
        exclude_tools=["b"],
        system="be brief",
        max_turns=3,
        temperature=0.5,
        min_pass_rate=0.1,
        max_pass_rate=0.9,
        feedback_deadline_s=60.0,
        agent_crash="score",
        agent_crash_score=-1.0,
        metadata={"$level": [1, {"a.b": 2}]},
    )
    path = write(tmp_path / "set.jsonl", [full, {"id": "bare", "query": "q"}])
    await import_task_file(store, path, ImportTarget("eval", "main", (2,), num_generations=3, at_version=5))
    task = await store.tasks.get("main:eval:2:t0")
    bare = await store.tasks.get("main:eval:2:bare")
    assert task is not None
    assert bare is not None
    assert {"id": task.tid, "source": task.source} | task.payload.model_dump() == full
    assert (task.seq, task.at_version, [s.traj_id for s in task.slots]) == (0, 5, [0, 1, 2])
    assert task.created_at is not None
    assert (bare.source, bare.payload.answer, bare.payload.answer_schema) == ("set", None, "answer")


async def test_nothing_is_written_when_the_last_line_is_wrong(store: Store, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [*(line(k) for k in range(2500)), line(0)])
    with pytest.raises(TaskFileError):
        await import_task_file(store, path, ImportTarget())
    assert await store.tasks.count_by_status() == {}


async def test_importing_again_changes_nothing_and_more_lines_follow_in_order(store: Store, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [line(k) for k in range(3)])
    assert await import_task_file(store, path, ImportTarget()) == ImportResult(3, 0)
    before = await store.database["tasks"].find().to_list()
    assert await import_task_file(store, path, ImportTarget()) == ImportResult(0, 3)
    assert await store.database["tasks"].find().to_list() == before
    write(path, [line(k) for k in (5, 1, 4)])
    assert await import_task_file(store, path, ImportTarget()) == ImportResult(2, 1)
    assert await order(store) == ["t0", "t1", "t2", "t5", "t4"]


async def test_a_task_stored_with_another_payload_is_an_error_and_nothing_is_overwritten(
    store: Store, tmp_path: Path
) -> None:
    path = write(tmp_path / "t.jsonl", [line(k) for k in range(3)])
    await import_task_file(store, path, ImportTarget())
    write(path, [line(7), line(1, answer="9", metadata={"a": 1})])
    with pytest.raises(TaskFileError) as caught:
        await import_task_file(store, path, ImportTarget())
    assert str(caught.value) == (
        f'{path}:2: task main:train:0:t1 is stored with another "answer", "metadata"; '
        "give it another id, or use another run"
    )
    assert await order(store) == ["t0", "t1", "t2"]


async def test_epochs_are_copies_of_the_file_one_after_the_other(store: Store, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [line(0), line(1)])
    assert await import_task_file(store, path, ImportTarget(epochs=range(3))) == ImportResult(6, 0)
    tasks = await store.database["tasks"].find({}, {"epoch": 1, "tid": 1}).sort("seq", 1).to_list()
    assert [(t["epoch"], t["tid"]) for t in tasks] == [(e, t) for e in range(3) for t in ("t0", "t1")]


async def test_progress_goes_by_bytes_to_the_end(store: Store, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [line(k) for k in range(1500)])
    seen: list[tuple[str, int, int]] = []
    await import_task_file(store, path, ImportTarget(epochs=range(2)), lambda *now: seen.append(now))
    total = 2 * path.stat().st_size
    assert {t for _, _, t in seen} == {total}
    for phase in ("checking", "importing"):
        done = [d for p, d, _ in seen if p == phase]
        assert done == sorted(done)
        assert done[-1] == total


async def test_concurrent_imports_leave_no_gap_and_no_duplicate(store: Store, tmp_path: Path) -> None:
    same = write(tmp_path / "same.jsonl", [line(k) for k in range(1500)])
    other = write(tmp_path / "other.jsonl", [line(k) for k in range(5000, 6200)])
    results = await asyncio.gather(*(import_task_file(store, p, ImportTarget()) for p in (same, same, other)))
    assert sum(r.inserted for r in results) == 2700
    tasks = await store.database["tasks"].find({}, {"seq": 1, "tid": 1}).sort("seq", 1).to_list()
    assert [t["seq"] for t in tasks] == list(range(2700))
    for path in (same, other):
        own = [json.loads(text)["id"] for text in path.read_text().splitlines()]
        assert [t["tid"] for t in tasks if t["tid"] in set(own)] == own  # each file's order survives


async def test_an_import_that_races_with_another_of_its_tasks_leaves_no_gap(store: Store, tmp_path: Path) -> None:
    """Both read the next `seq` before either writes; what the first has taken must not become a hole of the second."""
    few = write(tmp_path / "few.jsonl", [line(k) for k in range(10)])
    mixed = [line(100 + k) for k in range(10)] + [
        line(k) for pair in zip(range(10), range(110, 120), strict=True) for k in pair
    ]
    many = write(tmp_path / "many.jsonl", mixed)
    for split in ("a", "b", "c"):
        await asyncio.gather(*(import_task_file(store, p, ImportTarget(split)) for p in (few, many)))
        tasks = await store.database["tasks"].find({"split": split}, {"seq": 1}).sort("seq", 1).to_list()
        assert [t["seq"] for t in tasks] == list(range(30))


async def test_a_killed_import_is_continued_by_running_it_again(mongod: Mongod, store: Store, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [line(k) for k in range(6_000)])
    await asyncio.to_thread(kill_an_import, mongod.connection_string, store.run, path)
    stored = await store.database["tasks"].count_documents({})
    assert 1_000 < stored < 6_000
    assert await import_task_file(store, path, ImportTarget(num_generations=2)) == ImportResult(6_000 - stored, stored)
    assert await order(store) == [f"t{k}" for k in range(6_000)]


DIES = """
import os, signal
from pymongo import monitoring
from tandem import main

class Killer(monitoring.CommandListener):
    left = 2

    def started(self, event):
        if event.command.get("update") == "tasks":
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)

    def succeeded(self, event): ...
    def failed(self, event): ...

monitoring.register(Killer())
main()
"""


def kill_an_import(connection_string: str, run: str, path: Path) -> None:
    """`tandem tasks import`, whose process dies as by kill -9 where it has inserted its second batch, and is about to date it."""
    command = [sys.executable, "-c", DIES, "tasks", "import", run, str(path), "--num_generations", "2"]
    environment = os.environ | {"DB_CONNECTION_STRING": connection_string}
    ended = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, timeout=120, check=False)
    assert ended.returncode == -signal.SIGKILL


async def order(store: Store) -> list[str]:
    """Ids by `seq`, which must have no hole."""
    tasks = await store.database["tasks"].find({}, {"seq": 1, "tid": 1}).sort("seq", 1).to_list()
    assert [t["seq"] for t in tasks] == list(range(len(tasks)))
    return [t["tid"] for t in tasks]
