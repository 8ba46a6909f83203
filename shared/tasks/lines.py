"""The format of one line of a task file, and its errors by file, line and field.

    {"id": "arith-00017", "query": "What is 17+11?", "answer": "28", "scorer": "math", "answer_schema": "answer"}

A file is JSONL, or one JSON array of such objects. For JSONL, only the ids are held in memory.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from pydantic import BaseModel, ValidationError

from shared.documents import TaskPayload
from shared.documents.scoring import repeated
from shared.errors import ConfigError
from shared.files.json_file import GivenTwice, load_json
from shared.names import check_label
from shared.rules.rounds import WrongRounds, check_rounds
from shared.tasks.arrays import NotAnArray, array_elements, is_array
from shared.tasks.exact_numbers import ExactFloat, is_number, number_text
from shared.tasks.line_errors import MAX_ERRORS, LineError, TaskFileError
from shared.tasks.query_blocks import QueryBlock, WrongQuery, has_blocks, query_blocks
from shared.tasks.stored_values import size_problem, value_problem
from shared.user_code.payload import own_payload_problems, shown

MAX_LINE_BYTES = 8 << 20
NOT_OF_FILES = ("fork", "query_blocks")  # made by `tandem fork`, and of `query` and `images`
PAYLOAD_FIELDS = tuple(name for name in TaskPayload.model_fields if name not in NOT_OF_FILES)
FIELDS = ("id", "source", *PAYLOAD_FIELDS, "images")
SAME = {
    "question": "query",
    "task_id": "id",
    "system_prompt": "system",
    "agent_name": "sampler",
    "image": "images",
}  # names in other systems' files
KNOWN = frozenset(FIELDS)


@dataclass(frozen=True, slots=True)
class TaskLine:
    """One valid line."""

    number: int
    end: int  # bytes of the file up to its end
    tid: str
    source: str
    payload: TaskPayload
    blocks: tuple[QueryBlock, ...] = ()  # of a question with images, as the line has them; empty: it has none


def check_task_file(path: Path) -> int:
    """Read the whole file; returns its number of tasks. Raises TaskFileError with the first 20 errors."""
    return sum(1 for _ in checked_lines(path))


def read_task_file(path: Path) -> Iterator[TaskLine | LineError]:
    """Yield every non-blank line in order: its task, or its errors. Raises ConfigError if there is no file."""
    size_of(path)
    if path.suffix in (".csv", ".tsv", ".parquet"):
        raise ConfigError(f"{path}: a table; make JSONL of it by `tandem tasks convert {path} {path.stem}.jsonl`")
    end = 0
    with path.open("rb") as file:
        if is_array(file):
            yield from _read_array(path, file)
            return
        for number, raw in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            end += len(raw)
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            if raw.strip():
                yield from _parse(path, number, end, raw)
            if len(raw) > MAX_LINE_BYTES:
                return  # the rest of the line was not read


def _read_array(path: Path, file: BinaryIO) -> Iterator[TaskLine | LineError]:
    try:
        for element in array_elements(file):
            yield from _parse(path, element.line, element.end, element.text)
    except NotAnArray as exc:
        yield LineError(str(path), exc.line, exc.text)


def size_of(path: Path) -> int:
    try:
        if not path.is_file():
            actual = "is a folder" if path.is_dir() else "is no regular file" if path.exists() else "no such file"
            raise ConfigError(f"{path}: {actual}; expected JSONL, one task on a line, or a JSON array")
        return path.stat().st_size
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read ({exc.strerror})") from exc


# ---------------------------------------------------------------------- one line


def _parse(path: Path, number: int, end: int, raw: bytes) -> Iterator[TaskLine | LineError]:
    try:
        values = _values(raw)
    except _Unreadable as exc:
        yield LineError(str(path), number, str(exc))
        return
    problems = list(_rename(values))
    blocks: tuple[QueryBlock, ...] = ()
    if has_blocks(values):
        try:
            values["query"], blocks = query_blocks(values)
        except WrongQuery as exc:
            problems.append(str(exc))
            values["query"] = "wrong"  # one error of a field
    payload = {name: values[name] for name in PAYLOAD_FIELDS if name in values}
    problems += [*_name_problems(values), *_payload_problems(payload, has_images=bool(blocks))]
    if not problems:
        read = TaskPayload.model_validate({"metadata": {}} | payload)  # an absent default would be deep-copied: slow
        yield TaskLine(number, end, values["id"], values.get("source") or path.stem, read, blocks)
    for text in problems:
        yield LineError(str(path), number, text)


class _Unreadable(Exception):
    """Message: what is wrong with a whole line, or with a value inside of it."""


def _values(raw: bytes) -> dict[str, Any]:
    """The object of a line, with values that MongoDB can store; an answer with its digits. Raises _Unreadable."""
    if len(raw) > MAX_LINE_BYTES:
        raise _Unreadable(f"longer than {MAX_LINE_BYTES} bytes; expected one task on a line")
    try:
        values = load_json(raw.decode("utf-8"), _refuse_constant)
    except UnicodeDecodeError as exc:
        raise _Unreadable(f"byte {exc.start} is not UTF-8; expected a UTF-8 file") from exc
    except GivenTwice as exc:
        raise _Unreadable(f'"{exc.name}" is given twice in one object; expected it once') from exc
    except json.JSONDecodeError as exc:
        raise _Unreadable(f"not JSON: {exc.msg} (column {exc.colno}); expected one object on a line") from exc
    except ValueError as exc:
        raise _Unreadable(f"not JSON: {exc}; expected one object on a line") from exc
    if not isinstance(values, dict):
        raise _Unreadable(f"found {_kind(values)}; expected an object with {', '.join(FIELDS)}")
    problem = value_problem(values)
    if problem is not None:
        raise _Unreadable(problem)
    if _has_fraction(values.get("answer")):  # once more, with the digits of the file; few lines are like that
        values["answer"] = load_json(raw.decode("utf-8"), _refuse_constant, ExactFloat.of)["answer"]
    return values


def _rename(values: dict[str, Any]) -> Iterator[str]:
    """Rename fields to ours, and convert numeric ids and answers to text. A field given under both names is an error."""
    for other, name in SAME.items():
        if other in values and name in values:
            yield f'"{other}" and "{name}" mean the same; expected one of them'
            del values[other]
        elif other in values:
            values[name] = values.pop(other)
    if is_number(values.get("id")):
        values["id"] = str(values["id"])
    answer = values.get("answer")
    if isinstance(answer, list):
        values["answer"] = [number_text(one) if is_number(one) else one for one in answer]
    elif is_number(answer):
        values["answer"] = number_text(answer)


def _has_fraction(answer: object) -> bool:
    return any(isinstance(one, float) for one in (answer if isinstance(answer, list) else [answer]))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _name_problems(values: Mapping[str, Any]) -> Iterator[str]:
    """Errors in the keys, "id" and "source", one text each."""
    if not values.keys() <= KNOWN:
        for name in sorted(values.keys() - KNOWN):
            yield f'unknown key "{name}"; expected one of {", ".join(FIELDS)}. Put your own fields under "metadata"'
    if "id" not in values:
        yield '"id" is missing; expected a text that no other line of the file has (`tandem tasks convert` numbers rows)'
    elif not isinstance(values["id"], str) or not values["id"].strip():
        yield f'"id" is {shown(values["id"])}; expected a text that is not empty'
    else:
        yield from _label_problems('"id"', values["id"])
    if not isinstance(values.get("source", ""), str):
        yield f'"source" is {shown(values["source"])}; expected a text (the name that scores are reported under)'
    elif values.get("source"):
        yield from _label_problems('"source"', values["source"])


def _label_problems(key: str, value: str) -> Iterator[str]:
    try:
        check_label(key, value)
    except ConfigError as exc:
        yield str(exc)


def _payload_problems(payload: Mapping[str, Any], *, has_images: bool) -> Iterator[str]:
    """Errors in the payload, one text per field, and its size."""
    if isinstance(payload.get("query"), str) and not payload["query"].strip() and not has_images:
        yield '"query" is empty; expected the question'
    answer = payload.get("answer")
    texts = answer if isinstance(answer, list) and answer else [answer]
    if answer is not None and not all(isinstance(one, str) for one in texts):
        yield f'"answer" is {shown(answer)}; expected {EXPECTED["answer"]}'
    try:
        read = TaskPayload.model_validate({"metadata": {}} | dict(payload))
        if (
            read.min_pass_rate is not None
            and read.max_pass_rate is not None
            and read.min_pass_rate > read.max_pass_rate
        ):
            yield f'"min_pass_rate" is {read.min_pass_rate:g}; expected at most "max_pass_rate", {read.max_pass_rate:g}'
        if read.scorer is not None and read.scorers:
            yield '"scorer" and "scorers" are both given; expected one of them'
        twice = repeated(read.scorers)
        if twice is not None:
            yield f'"scorers" names {shown(twice)} twice; expected each scorer once'
        if read.rounds is not None:
            check_rounds(read.rounds)
        too_large = size_problem(payload)
        if too_large is not None:
            yield too_large
    except ValidationError as exc:
        yield from (_explain(error) for error in exc.errors() if error["loc"][0] != "answer")
    except WrongRounds as exc:
        yield str(exc)


EXPECTED = {
    "query": "a text, or blocks of text and images",
    "answer": "a text or a number, a list of them (any is right), or null",
    "sampler": "a text (the name of a sampler: mcp, agent, environment, or one of the setting samplers) or null",
    "scorer": "a text (the name of a scorer) or null",
    "scorers": 'a list of {"name": a scorer, "weight": a number} (at most 20)',
    "answer_schema": '"answer" or "boxed"',
    "tools": "a list of tool names, or null for all",
    "exclude_tools": "a list of tool names",
    "system": "a text or null",
    "max_turns": "a whole number from 1 on, or null",
    "temperature": "a number from 0 on, or null",
    "agent_crash": "auto, retry or score, or null",
    "agent_crash_score": "a finite number, or null",
    "feedback_deadline_s": "seconds (0: the score is due at the episode's end), or null",
    "min_pass_rate": "a number from 0 to 1, or null",
    "max_pass_rate": "a number from 0 to 1, or null",
    "actors": 'actors by name, such as {"Bob": {"policy": "main"}, "Rival": {"policy": "main", "at": 40}}',
    "rounds": "a text such as A -> (B/C)*2 -> *, or null",
    "lineups": 'a list of seats with their actors, such as [{"X": "Bob", "O": "Rival"}]',
    "metadata": "an object",
}


def _explain(error: Any) -> str:
    name = str(error["loc"][0])
    where = ".".join(map(str, error["loc"]))
    if error["type"] == "missing":
        return f'"{where}" is missing; expected {EXPECTED[name]}'
    return f'"{where}" is {shown(error["input"])}; expected {EXPECTED[name]}'


def _kind(value: Any) -> str:
    return {list: "a list", str: "a text", type(None): "null", bool: "true or false"}.get(type(value), "a number")


# ---------------------------------------------------------------------- the whole file


def checked_lines(path: Path, payload_model: type[BaseModel] | None = None) -> Iterator[TaskLine]:
    """Yield valid lines. Raises TaskFileError at the end or at the 20th error if there were errors."""
    errors: list[LineError] = []
    seen: dict[str, int] = {}
    for line in read_task_file(path):
        if isinstance(line, LineError):
            errors.append(line)
        elif payload_model and (problems := list(own_payload_problems(payload_model, line.payload.metadata))):
            errors += [LineError(str(path), line.number, text) for text in problems]
        elif (first := seen.setdefault(line.tid, line.number)) != line.number:
            errors.append(LineError(str(path), line.number, f'"id" is "{line.tid}", which line {first} already has'))
        else:
            yield line
        if len(errors) >= MAX_ERRORS:
            break
    if errors:
        raise TaskFileError(errors)
    if not seen:
        raise ConfigError(f"{path}: no task in it; expected JSONL, one task on a line")


def check_unique_ids(paths: Sequence[Path]) -> None:
    """Check files that form one task set: each valid, no id in two files. Raises TaskFileError with the first 20 errors."""
    errors: list[LineError] = []
    places: dict[str, str] = {}
    for path in paths:
        for line in checked_lines(path):
            where = f"{path}:{line.number}"
            first = places.setdefault(line.tid, where)
            if first is not where:
                text = (
                    f'"id" is "{line.tid}", which {first} already has; change it, or list the files as separate '
                    "sources (section tasks of the YAML, docs/bring/tasks.md), which prefixes ids with the source's name"
                )
                errors.append(LineError(str(path), line.number, text))
    if errors:
        raise TaskFileError(errors[:MAX_ERRORS])


def lines_of(path: Path) -> Iterator[TaskLine]:
    """The lines of a file that was checked and has not changed since."""
    for line in read_task_file(path):
        if isinstance(line, LineError):
            raise TaskFileError([line])
        yield line
