"""Task files: every error by line and field, before anything is written."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from shared.errors import ConfigError
from shared.store import Store
from shared.tasks.files import ImportTarget, import_task_file
from shared.tasks.line_errors import TaskFileError
from shared.tasks.lines import check_task_file, check_unique_ids, lines_of
from tests.shared.lines_of_tasks import line, write


def errors_of(path: Path) -> list[str]:
    with pytest.raises(TaskFileError) as caught:
        check_task_file(path)
    return [str(e).removeprefix(f"{path}:") for e in caught.value.errors]


WRONG: dict[str, tuple[Any, str]] = {
    "no JSON": ("{oops", "not JSON: Expecting property name enclosed in double quotes (column 2); expected one"),
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
    "a number that is too large": (
        line(1, metadata={"x": 2**70}),
        '"metadata.x" is a whole number of more than 64 bits',
    ),
    "a null character in a key": (line(1, metadata={"a\0b": 1}), '"metadata" has a name with the character \\u0000'),
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
        await import_task_file(store, path, ImportTarget(payload_model=Maze))
    assert [str(e).removeprefix(f"{path}:") for e in caught.value.errors] == [
        '2: "metadata.size" is 1; Input should be greater than or equal to 2',
        '2: "metadata.start.1" is "east"; Input should be a valid integer, unable to parse string as an integer',
        '3: "metadata.size" is missing; Maze expects it',
    ]
    assert await store.tasks.get("main:train:0:t0") is None
    assert (await import_task_file(store, path, ImportTarget())).inserted == 3  # without a source


def test_an_error_of_many_lines_is_told_once_with_their_numbers(tmp_path: Path) -> None:
    lines = [{"id": str(number), "query": "q"} for number in range(9)]
    for number in (2, 3, 4, 8):
        lines[number] = {"id": str(number)}
    lines[6]["query"] = ""
    path = write(tmp_path / "a.jsonl", lines)
    with pytest.raises(TaskFileError) as caught:
        check_task_file(path)
    missing, empty = str(caught.value).splitlines()
    assert (
        missing
        == f'{path}:3: "query" is missing; expected a text, or blocks of text and images; so are lines 4 to 5, 9'
    )
    assert empty == f'{path}:7: "query" is empty; expected the question'
    with pytest.raises(TaskFileError, match=r"so are lines 2 to 20 \(only the first errors are listed\)"):
        check_task_file(write(path, [{"id": str(number)} for number in range(30)]))


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
        ('[{"id": "a", "query": "q"}]\n{"id": "b"}', "1: found text after the array's end"),
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


def test_the_error_for_an_unknown_key_recommends_metadata(tmp_path: Path) -> None:
    assert errors_of(write(tmp_path / "t.jsonl", [line(0, level=3)]))[0].endswith(
        'Put your own fields under "metadata"'
    )


def test_a_duplicate_id_in_a_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [line(0), line(1), line(0)])
    assert errors_of(path) == ['3: "id" is "t0", which line 1 already has']


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


def test_names_that_break_ids_are_refused() -> None:
    with pytest.raises(ConfigError, match="split name 'a:b'"):
        ImportTarget(split="a:b")
    with pytest.raises(ConfigError, match="num_generations is 0"):
        ImportTarget(num_generations=0)


def test_an_id_in_two_files_of_one_set_is_reported_with_both_places(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", [line(0), line(1)])
    second = write(tmp_path / "b.jsonl", ["", line(2), line(1, query="another")])
    check_unique_ids([first])
    with pytest.raises(TaskFileError) as caught:
        check_unique_ids([first, second])
    (error,) = caught.value.errors
    assert str(error).startswith(f'{second}:3: "id" is "t1", which {first}:2 already has; change it, or list the files')
    with pytest.raises(TaskFileError, match=f"{first}:1 already has"):
        check_unique_ids([first, first])
