"""Task files: JSONL in, `tasks` out. Checked whole before anything is written, imported in batches, repeatable.

    {"id": "arith-00017", "query": "What is 17+11?", "answer": "28", "scorer": "math", "answer_schema": "answer"}

A task that is stored with the same payload is left alone; with another payload it is an error. `seq` follows the file's
order after what is stored, without holes, also when an import was killed or two run at once. Memory does not grow with
the file, but for the ids.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import bson
import bson.errors
from pydantic import BaseModel, ValidationError

from shared.documents import Slot, Task, TaskPayload, task_id
from shared.errors import ConfigError
from shared.own_payload import own_payload_problems, shown
from shared.store import Store
from shared.store.pipelines import EPOCH

BATCH = 1_000
MAX_ERRORS = 20
MAX_LINE_BYTES = 8 << 20  # half of MongoDB's limit for a document
PAYLOAD_FIELDS = tuple(TaskPayload.model_fields)
FIELDS = ("id", "source", *PAYLOAD_FIELDS)
KNOWN = frozenset(FIELDS)

Progress = Callable[[str, int, int], None]  # ("checking" | "importing", bytes done, bytes in all)


@dataclass(frozen=True, slots=True)
class TaskLine:
    """One valid line."""

    number: int
    end: int  # bytes of the file up to its end
    tid: str
    source: str
    payload: TaskPayload


@dataclass(frozen=True, slots=True)
class LineError:
    """One thing wrong with one line."""

    file: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}: {self.text}"


class TaskFileError(ConfigError):
    """The file is wrong; `errors` holds up to 20 things, and nothing was written because of them."""

    def __init__(self, errors: Sequence[LineError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(map(str, errors)))


@dataclass(frozen=True, slots=True)
class Target:
    """Where the tasks of a file go."""

    split: str = "train"
    policy: str = "main"
    epochs: Sequence[int] = (0,)
    num_generations: int = 8
    at_version: int | None = None
    payload_model: type[BaseModel] | None = None  # what the sampler makes of a line's metadata; None: anything

    def __post_init__(self) -> None:
        for name, value in (("split", self.split), ("policy", self.policy)):
            if not value or ":" in value:
                raise ConfigError(f"{name} {value!r}: expected a name without ':', which separates the parts of ids")
        if self.num_generations < 1:
            raise ConfigError(f"num_generations is {self.num_generations}; expected 1 or more episodes per task")
        if not self.epochs or min(self.epochs) < 0:
            raise ConfigError(f"epochs {list(self.epochs)}: expected one or more numbers from 0 on")


@dataclass(frozen=True, slots=True)
class ImportResult:
    inserted: int
    unchanged: int


async def import_task_file(store: Store, path: Path, target: Target, progress: Progress | None = None) -> ImportResult:
    """Check the whole file, then import it. Raises TaskFileError; before the first write for all that the file tells."""
    report = progress or (lambda phase, done, total: None)
    total = _size(path) * len(target.epochs)
    await _check_stored(store, path, target, lambda done: report("checking", done, total))
    inserted = unchanged = done = 0
    for epoch in target.epochs:
        for batch in _batches(_valid(path)):
            new = await _import_batch(store, path, batch, target, epoch)
            inserted += new
            unchanged += len(batch) - new
            report("importing", done + batch[-1].end, total)
        done += _size(path)
    return ImportResult(inserted, unchanged)


def check_task_file(path: Path) -> int:
    """Read the whole file; returns how many tasks it holds. Raises TaskFileError with its first 20 errors."""
    return sum(1 for _ in _checked(path))


def read_task_file(path: Path) -> Iterator[TaskLine | LineError]:
    """Every line in order, blank ones skipped: what it holds, or what is wrong with it. Raises ConfigError without a file."""
    _size(path)
    end = 0
    with path.open("rb") as file:
        for number, raw in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            end += len(raw)
            if len(raw) > MAX_LINE_BYTES:
                yield LineError(str(path), number, f"longer than {MAX_LINE_BYTES} bytes; expected one task on a line")
                return
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            if raw.strip():
                yield from _parse(path, number, end, raw)


def _size(path: Path) -> int:
    try:
        if not path.is_file():
            raise ConfigError(f"{path}: no such file; expected JSONL, one task on a line")
        return path.stat().st_size
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read ({exc.strerror})") from exc


# ---------------------------------------------------------------------- one line


def _parse(path: Path, number: int, end: int, raw: bytes) -> Iterator[TaskLine | LineError]:
    try:
        values = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as exc:
        yield LineError(str(path), number, f"byte {exc.start} is not UTF-8; expected a UTF-8 file")
        return
    except (ValueError, RecursionError) as exc:
        yield LineError(str(path), number, f"not JSON: {exc}; expected one object on a line")
        return
    if not isinstance(values, dict):
        text = f"found {_kind(values)}; expected an object with {', '.join(FIELDS)}"
        yield LineError(str(path), number, text)
        return
    payload = {name: values[name] for name in PAYLOAD_FIELDS if name in values}
    problems = [*_name_problems(values), *_payload_problems(payload)]
    if not problems:
        read = TaskPayload.model_validate({"metadata": {}} | payload)  # an absent default would be deep-copied: slow
        yield TaskLine(number, end, values["id"], values.get("source") or path.stem, read)
    for text in problems:
        yield LineError(str(path), number, text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _name_problems(values: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the keys, "id" and "source", one text each."""
    if not values.keys() <= KNOWN:
        for name in sorted(values.keys() - KNOWN):
            yield f'unknown key "{name}"; expected one of {", ".join(FIELDS)}. Put what is yours under "metadata"'
    if "id" not in values:
        yield '"id" is missing; expected a text that no other line of the file has'
    elif not isinstance(values["id"], str) or not values["id"].strip():
        yield f'"id" is {shown(values["id"])}; expected a text that is not empty'
    if not isinstance(values.get("source", ""), str):
        yield f'"source" is {shown(values["source"])}; expected a text (the name that scores are reported under)'


def _payload_problems(payload: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the payload, one text per field; also what MongoDB could not store."""
    if isinstance(payload.get("query"), str) and not payload["query"].strip():
        yield '"query" is empty; expected the question'
    try:
        TaskPayload.model_validate({"metadata": {}} | dict(payload))
        bson.encode(payload)
    except ValidationError as exc:
        yield from (_explain(error) for error in exc.errors())
    except (OverflowError, bson.errors.InvalidDocument, UnicodeEncodeError) as exc:
        yield f"MongoDB cannot store it: {exc}"


EXPECTED = {
    "query": "a text",
    "answer": 'a text (numbers too: "42") or null',
    "scorer": "a text (the name of a scorer) or null",
    "answer_schema": '"answer" or "boxed"',
    "tools": "a list of tool names, or null for all",
    "exclude_tools": "a list of tool names",
    "system": "a text or null",
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


def _checked(path: Path, payload_model: type[BaseModel] | None = None) -> Iterator[TaskLine]:
    """Valid lines; at the end, or at the 20th error, raises TaskFileError if there were any."""
    errors: list[LineError] = []
    seen: dict[str, int] = {}
    for line in read_task_file(path):
        if isinstance(line, LineError):
            errors.append(line)
        elif payload_model and (problems := list(own_payload_problems(payload_model, line.payload.metadata))):
            errors += [LineError(str(path), line.number, text) for text in problems]
        elif (first := seen.setdefault(line.tid, line.number)) != line.number:
            errors.append(LineError(str(path), line.number, f'"id" is "{line.tid}", which line {first} has already'))
        else:
            yield line
        if len(errors) >= MAX_ERRORS:
            break
    if errors:
        raise TaskFileError(errors)
    if not seen:
        raise ConfigError(f"{path}: no task in it; expected JSONL, one task on a line")


def _valid(path: Path) -> Iterator[TaskLine]:
    """The lines of a file that was checked; it may not change meanwhile."""
    for line in read_task_file(path):
        if isinstance(line, LineError):
            raise TaskFileError([line])
        yield line


def _batches(lines: Iterable[TaskLine]) -> Iterator[list[TaskLine]]:
    rest = iter(lines)
    while batch := list(islice(rest, BATCH)):
        yield batch


# ---------------------------------------------------------------------- against what is stored


async def _check_stored(store: Store, path: Path, target: Target, report: Callable[[int], None]) -> None:
    """The first pass: the file's own errors, then tasks that are stored with another payload."""
    conflicts: list[LineError] = []
    for batch in _batches(_checked(path, target.payload_model)):
        for epoch in target.epochs:
            stored = await store.tasks.existing_payloads([_id(target, epoch, line) for line in batch])
            conflicts += _conflicts(path, batch, target, epoch, stored)
        report(batch[-1].end * len(target.epochs))
    if conflicts:
        raise TaskFileError(conflicts[:MAX_ERRORS])


def _id(target: Target, epoch: int, line: TaskLine) -> str:
    return task_id(target.policy, target.split, epoch, line.tid)


def _conflicts(
    path: Path, batch: Sequence[TaskLine], target: Target, epoch: int, stored: Mapping[str, Mapping[str, Any]]
) -> list[LineError]:
    found = []
    for line in batch:
        old = stored.get(_id(target, epoch, line))
        if old is not None and old != (new := line.payload.model_dump()):
            names = ", ".join(f'"{k}"' for k in new if old.get(k) != new[k])
            text = f"task {_id(target, epoch, line)} is stored with another {names}; give it another id, or use another run"
            found.append(LineError(str(path), line.number, text))
    return found


async def _import_batch(store: Store, path: Path, batch: Sequence[TaskLine], target: Target, epoch: int) -> int:
    """Insert what is not stored yet; returns how many. Somebody else's import at the same time costs a retry, no hole."""
    inserted = 0
    while True:
        stored = await store.tasks.existing_payloads([_id(target, epoch, line) for line in batch])
        if conflicts := _conflicts(path, batch, target, epoch, stored):
            raise TaskFileError(conflicts[:MAX_ERRORS])
        missing = [line for line in batch if _id(target, epoch, line) not in stored]
        if not missing:
            return inserted
        first = await store.tasks.next_seq(target.policy, target.split)
        slots = [Slot(traj_id=k, free_at=EPOCH) for k in range(target.num_generations)]
        tasks = [_task(target, epoch, seq, line, slots) for seq, line in enumerate(missing, start=first)]
        inserted += await store.tasks.insert_new(tasks, ordered=True)
        if len(missing) == len(batch) and inserted == len(batch):
            return inserted


def _task(target: Target, epoch: int, seq: int, line: TaskLine, slots: list[Slot]) -> Task:
    return Task(
        id=_id(target, epoch, line),
        tid=line.tid,
        split=target.split,
        epoch=epoch,
        policy=target.policy,
        seq=seq,
        source=line.source,
        at_version=target.at_version,
        payload=line.payload,
        num_generations=target.num_generations,
        slots=slots,
        scores=[],
        free_at=EPOCH,
    )
