"""Task files: every error by line and field before anything is written; imports that repeat, continue and overlap."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from shared.errors import ConfigError
from shared.mongod import Mongod
from shared.store import Store
from shared.task_files import ImportResult, Target, import_task_file
from shared.task_lines import TaskFileError, check_task_file, check_unique_ids, lines_of
from tests.conftest import ROOT


def line(k: int, **fields: Any) -> dict[str, Any]:
    return {"id": f"t{k}", "query": f"{k}+{k}?", "answer": str(2 * k), "scorer": "math"} | fields


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return path


def errors_of(path: Path) -> list[str]:
    with pytest.raises(TaskFileError) as caught:
        check_task_file(path)
    return [str(e).removeprefix(f"{path}:") for e in caught.value.errors]


WRONG: dict[str, tuple[Any, str]] = {
    "no JSON": ("{oops", "not JSON: Expecting property name"),
    "a key twice": (
        '{"id":"a","query":"q","answer":"1","answer":"2"}',
        '"answer" is given twice in one object; expected it',
    ),
    "a key twice inside": ('{"id":"a","query":"q","metadata":{"x":{"y":1,"y":2}}}', '"y" is given twice in one object'),
    "a list": ("[1]", "found a list; expected an object with id, source, query"),
    "no id": ({"query": "q"}, '"id" is missing; expected a text that no other line of the file has'),
    "an empty id": (line(1, id=" "), '"id" is " "; expected a text that is not empty'),
    "an id that is true": (line(1, id=True), '"id" is true; expected a text'),
    "no query": ({"id": "a"}, '"query" is missing; expected a text'),
    "an empty query": (line(1, query=""), '"query" is empty; expected the question'),
    "an answer that is true": (line(1, answer=True), '"answer" is true; expected a text or a number, a list of them'),
    "no answer in a list": (line(1, answer=[]), '"answer" is []; expected a text or a number, a list of them'),
    "an answer in a list that is none": (line(1, answer=["a", None]), '"answer" is ["a", null]; expected a text or a'),
    "a field under two names": (line(1, question="?"), '"question" and "query" mean the same; expected one of them'),
    "a misspelt schema": (line(1, answer_schema="bxoed"), '"answer_schema" is "bxoed"; expected "answer" or "boxed"'),
    "tools as a text": (line(1, tools="calculator"), '"tools" is "calculator"; expected a list of tool names'),
    "a tool that is no text": (line(1, tools=["a", 3]), '"tools.1" is 3; expected a list of tool names'),
    "turns that are no number": (line(1, max_turns=True), '"max_turns" is true; expected a whole number from 1 on'),
    "a band that is empty": (
        line(1, min_pass_rate=0.9, max_pass_rate=0.1),
        '"min_pass_rate" is 0.9; expected at most "max_pass_rate", 0.1',
    ),
    "no turns": (line(1, max_turns=0), '"max_turns" is 0; expected a whole number from 1 on, or null'),
    "a rate in percent": (line(1, max_pass_rate=90), '"max_pass_rate" is 90; expected a number from 0 to 1, or null'),
    "metadata as a text": (line(1, metadata="x"), '"metadata" is "x"; expected an object'),
    "a source that is no text": (line(1, source=3), '"source" is 3; expected a text'),
    "an unknown key": (line(1, level=3), 'unknown key "level"; expected one of id, source, query'),
    "an infinite number": ('{"id":"a","query":"q","metadata":{"x":NaN}}', "not JSON: NaN is no JSON number"),
    "a number that is too large": (line(1, metadata={"x": 2**70}), "MongoDB cannot store it"),
    "a null character in a key": (line(1, metadata={"a\0b": 1}), "MongoDB cannot store it"),
}


class Maze(BaseModel):
    size: int = Field(ge=2)
    start: tuple[int, int]


async def test_metadata_that_does_not_fit_the_samplers_own_model_is_refused_by_line_and_field(
    store: Store, tmp_path: Path
) -> None:
    mazes: list[dict[str, Any]] = [{"size": 3, "start": [0, 1]}, {"size": 1, "start": [0, "east"]}, {"start": [0, 0]}]
    path = write(tmp_path / "mazes.jsonl", [line(k, metadata=maze) for k, maze in enumerate(mazes)])
    with pytest.raises(TaskFileError) as caught:
        await import_task_file(store, path, Target(payload_model=Maze))
    assert [str(e).removeprefix(f"{path}:") for e in caught.value.errors] == [
        '2: "metadata.size" is 1; Input should be greater than or equal to 2',
        '2: "metadata.start.1" is "east"; Input should be a valid integer, unable to parse string as an integer',
        '3: "metadata.size" is missing; Maze expects it',
    ]
    assert await store.tasks.get("main:train:0:t0") is None
    assert (await import_task_file(store, path, Target())).inserted == 3  # nobody said whose they are


@pytest.mark.parametrize("what", WRONG)
def test_a_line_is_refused_with_its_number_its_field_and_the_remedy(tmp_path: Path, what: str) -> None:
    wrong, text = WRONG[what]
    errors = errors_of(write(tmp_path / "tasks.jsonl", [line(0), "", wrong, line(9)]))
    assert len(errors) == 1
    assert errors[0].startswith(f"3: {text}")


def test_numbers_lists_and_other_systems_names_are_taken(tmp_path: Path) -> None:
    lines = [
        {"task_id": 7, "question": "3+1?", "answer": 4, "system_prompt": "Be brief."},
        {"id": "b", "query": "a half?", "answer": [0.5, "1/2"]},
        {"id": "c", "query": "?", "answer": 2**70},
    ]
    read = list(lines_of(write(tmp_path / "t.jsonl", lines)))
    assert [(one.tid, one.payload.query, one.payload.accepted) for one in read] == [
        ("7", "3+1?", ("4",)),
        ("b", "a half?", ("0.5", "1/2")),
        ("c", "?", (str(2**70),)),
    ]
    assert read[0].payload.system == "Be brief."


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("head", ["", "\ufeff", "\n  "])
def test_a_json_array_holds_the_same_tasks_as_jsonl(tmp_path: Path, indent: int | None, head: str) -> None:
    lines = [line(k, query=f"wieviel ist {k} × 2?") for k in range(5)]
    path = tmp_path / "tasks.json"
    path.write_text(head + json.dumps(lines, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")
    read = list(lines_of(path))
    assert [one.payload for one in read] == [
        one.payload for one in lines_of(write(tmp_path / "t.jsonl", [json.dumps(x) for x in lines]))
    ]
    assert [one.end for one in read] == sorted({one.end for one in read})
    assert read[-1].end <= path.stat().st_size
    if indent:
        text = path.read_text(encoding="utf-8").splitlines()
        assert [text[one.number - 1].strip() for one in read] == ["{"] * 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[\n{"id": "a", "query": "q"},\n{"id": "b"}\n]', '3: "query" is missing; expected a text'),
        ('[\n{"id": "a", "query": "q"},\n3]', "3: found a number; expected an object"),
        ('[\n{"id": "a", "query": "q"}\n{"id": "b"}]', "3: not JSON: expected a comma or the array's end"),
        ('[\n{"id": "a", "query": "q"},\n{oops}]', "3: not JSON: Expecting property name"),
        ('[\n{"id": "a", "query": "q"},\n', "3: not JSON: Expecting value"),
        ('[{"id": "a", "query": "q"}]\n{"id": "b"}', "1: something stands behind the array's end"),
        ('[{"id": "a", "query": "q", "query": "r"}]', '1: "query" is given twice in one object'),
        ("[" * 100_000, "1: not JSON: nested too deeply"),
    ],
)
def test_an_element_of_an_array_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "t.json").write_text(text)
    assert errors_of(tmp_path / "t.json")[0].startswith(said)


def test_an_array_that_is_not_utf8_is_refused_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(b'[\n{"id": "caf\xe9"}]')
    assert errors_of(tmp_path / "t.json") == ["2: byte 13 is not UTF-8; expected a UTF-8 file"]


def test_an_unknown_key_is_sent_to_metadata(tmp_path: Path) -> None:
    assert errors_of(write(tmp_path / "t.jsonl", [line(0, level=3)]))[0].endswith('Put what is yours under "metadata"')


def test_an_id_may_stand_in_a_file_only_once(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [line(0), line(1), line(0)])
    assert errors_of(path) == ['3: "id" is "t0", which line 1 has already']


def test_errors_are_collected_up_to_twenty(tmp_path: Path) -> None:
    errors = errors_of(write(tmp_path / "t.jsonl", [line(k, answer={}) for k in range(50)]))
    assert [e.split(":")[0] for e in errors] == [str(k) for k in range(1, 21)]


def test_a_file_that_is_not_utf8_or_empty_or_missing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.jsonl").write_bytes(b'{"id": "caf\xe9"}\n')
    assert errors_of(tmp_path / "latin.jsonl") == ["1: byte 11 is not UTF-8; expected a UTF-8 file"]
    with pytest.raises(ConfigError, match="no task in it"):
        check_task_file(write(tmp_path / "empty.jsonl", ["", " "]))
    with pytest.raises(ConfigError, match="no such file"):
        check_task_file(tmp_path / "absent.jsonl")


def test_a_byte_order_mark_and_a_last_line_without_its_end_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(
        b"\xef\xbb\xbf" + json.dumps(line(0)).encode() + b"\n" + json.dumps(line(1)).encode()
    )
    assert check_task_file(tmp_path / "t.jsonl") == 2


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
        metadata={"$level": [1, {"a.b": 2}]},
    )
    path = write(tmp_path / "set.jsonl", [full, {"id": "bare", "query": "q"}])
    await import_task_file(store, path, Target("eval", "main", (2,), num_generations=3, at_version=5))
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
        await import_task_file(store, path, Target())
    assert await store.tasks.count_by_status() == {}


async def test_importing_again_changes_nothing_and_more_lines_follow_in_order(store: Store, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [line(k) for k in range(3)])
    assert await import_task_file(store, path, Target()) == ImportResult(3, 0)
    before = await store.database["tasks"].find().to_list()
    assert await import_task_file(store, path, Target()) == ImportResult(0, 3)
    assert await store.database["tasks"].find().to_list() == before
    write(path, [line(k) for k in (5, 1, 4)])
    assert await import_task_file(store, path, Target()) == ImportResult(2, 1)
    assert await order(store) == ["t0", "t1", "t2", "t5", "t4"]


async def test_a_task_stored_with_another_payload_is_an_error_and_nothing_is_overwritten(
    store: Store, tmp_path: Path
) -> None:
    path = write(tmp_path / "t.jsonl", [line(k) for k in range(3)])
    await import_task_file(store, path, Target())
    write(path, [line(7), line(1, answer="9", metadata={"a": 1})])
    with pytest.raises(TaskFileError) as caught:
        await import_task_file(store, path, Target())
    assert str(caught.value) == (
        f'{path}:2: task main:train:0:t1 is stored with another "answer", "metadata"; '
        "give it another id, or use another run"
    )
    assert await order(store) == ["t0", "t1", "t2"]


async def test_epochs_are_copies_of_the_file_one_after_the_other(store: Store, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [line(0), line(1)])
    assert await import_task_file(store, path, Target(epochs=range(3))) == ImportResult(6, 0)
    tasks = await store.database["tasks"].find({}, {"epoch": 1, "tid": 1}).sort("seq", 1).to_list()
    assert [(t["epoch"], t["tid"]) for t in tasks] == [(e, t) for e in range(3) for t in ("t0", "t1")]


async def test_progress_goes_by_bytes_to_the_end(store: Store, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [line(k) for k in range(1500)])
    seen: list[tuple[str, int, int]] = []
    await import_task_file(store, path, Target(epochs=range(2)), lambda *now: seen.append(now))
    total = 2 * path.stat().st_size
    assert {t for _, _, t in seen} == {total}
    for phase in ("checking", "importing"):
        done = [d for p, d, _ in seen if p == phase]
        assert done == sorted(done)
        assert done[-1] == total


async def test_imports_at_the_same_time_leave_no_hole_and_no_double(store: Store, tmp_path: Path) -> None:
    same = write(tmp_path / "same.jsonl", [line(k) for k in range(1500)])
    other = write(tmp_path / "other.jsonl", [line(k) for k in range(5000, 6200)])
    results = await asyncio.gather(*(import_task_file(store, p, Target()) for p in (same, same, other)))
    assert sum(r.inserted for r in results) == 2700
    tasks = await store.database["tasks"].find({}, {"seq": 1, "tid": 1}).sort("seq", 1).to_list()
    assert [t["seq"] for t in tasks] == list(range(2700))
    for path in (same, other):
        own = [json.loads(text)["id"] for text in path.read_text().splitlines()]
        assert [t["tid"] for t in tasks if t["tid"] in set(own)] == own  # each file's order survives


async def test_an_import_overtaken_by_another_of_some_of_its_tasks_leaves_no_hole(store: Store, tmp_path: Path) -> None:
    """Both read the next `seq` before either writes; what the first has taken must not become a hole of the second."""
    few = write(tmp_path / "few.jsonl", [line(k) for k in range(10)])
    mixed = [line(100 + k) for k in range(10)] + [
        line(k) for pair in zip(range(10), range(110, 120), strict=True) for k in pair
    ]
    many = write(tmp_path / "many.jsonl", mixed)
    for split in ("a", "b", "c"):
        await asyncio.gather(*(import_task_file(store, p, Target(split)) for p in (few, many)))
        tasks = await store.database["tasks"].find({"split": split}, {"seq": 1}).sort("seq", 1).to_list()
        assert [t["seq"] for t in tasks] == list(range(30))


async def test_a_killed_import_is_continued_by_running_it_again(mongod: Mongod, store: Store, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [line(k) for k in range(6_000)])
    await asyncio.to_thread(kill_an_import, mongod.connection_string, store.run, path)
    stored = await store.database["tasks"].count_documents({})
    assert 1_000 < stored < 6_000
    assert await import_task_file(store, path, Target(num_generations=2)) == ImportResult(6_000 - stored, stored)
    assert await order(store) == [f"t{k}" for k in range(6_000)]


DIES = """
import os, signal
from pymongo import monitoring
from shared.cli import main

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


def test_names_that_would_break_ids_are_refused() -> None:
    with pytest.raises(ConfigError, match="split name 'a:b'"):
        Target(split="a:b")
    with pytest.raises(ConfigError, match="num_generations is 0"):
        Target(num_generations=0)


def test_an_id_in_two_files_of_one_set_is_told_with_both_places(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", [line(0), line(1)])
    second = write(tmp_path / "b.jsonl", ["", line(2), line(1, query="another")])
    check_unique_ids([first])
    with pytest.raises(TaskFileError) as caught:
        check_unique_ids([first, second])
    (error,) = caught.value.errors
    assert str(error).startswith(f'{second}:3: "id" is "t1", which {first}:2 has already; give it another one')
    with pytest.raises(TaskFileError, match=f"{first}:1 has already"):
        check_unique_ids([first, first])
