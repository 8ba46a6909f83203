"""Imports tasks into the queue: checks whole files before the first write, imports in batches, can be repeated.

    import_task_file   one file, its epochs one after the other
    import_entries     the common part of all imports: tasks in the order in which they may be opened (`shared.tasks.mix`)

A task that is stored with the same payload is unchanged; a different payload is an error. `seq` continues after the stored
tasks in the given order, without gaps, even if an import was killed or two run concurrently.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from shared.documents import Slot, Task, TaskPayload, task_id
from shared.errors import ConfigError
from shared.names import DEFAULT_POLICY, FORK_SPLIT, TRAIN_SPLIT, check_name
from shared.rules.temperatures import temperature_problem
from shared.store import Store
from shared.store.pipelines import EPOCH
from shared.tasks.checks import TaskCheck
from shared.tasks.line_errors import MAX_ERRORS, LineError, TaskFileError
from shared.tasks.lines import TaskLine, checked_lines, lines_of, size_of
from shared.tasks.query_blocks import QueryBlock
from shared.tasks.task_images import TaskImages, batches, missing_files

NUM_GENERATIONS = 8  # episodes of a task, by default
MOST_GENERATIONS = 1_000  # each has a slot with an error of up to 4,000 characters in the task's document of 16 MB
Progress = Callable[[str, int, int], None]  # ("checking" | "importing", done, total: bytes, or tasks of a mixture)


@dataclass(frozen=True, slots=True)
class ImportTarget:
    """The destination and common settings of a file's tasks.

    `source`: the name under which they are reported, also prefixed to their ids (None: the lines' sources, ids unchanged).
    `settings`: payload fields that override the lines'.
    """

    split: str = TRAIN_SPLIT
    policy: str = DEFAULT_POLICY
    epochs: Sequence[int] = (0,)
    num_generations: int = NUM_GENERATIONS
    at_version: int | None = None
    payload_model: type[BaseModel] | None = None  # schema of a line's metadata; None: any
    source: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    check: TaskCheck | None = None  # whether samplers can play them; None: not checked
    image_hosts: Sequence[str] = ()  # from which http(s) URLs of images are fetched

    def __post_init__(self) -> None:
        check_name("split", self.split)
        check_name("policy", self.policy)
        if self.split == FORK_SPLIT:
            raise ConfigError(
                f"split {FORK_SPLIT!r} is for continuations of stored turns (`tandem fork`); expected another name"
            )
        if not 1 <= self.num_generations <= MOST_GENERATIONS:
            raise ConfigError(
                f"num_generations is {self.num_generations}; expected 1 to {MOST_GENERATIONS} episodes per task"
            )
        if not self.epochs or min(self.epochs) < 0:
            raise ConfigError(f"epochs {list(self.epochs)}: expected one or more numbers from 0 on")


@dataclass(frozen=True, slots=True)
class Entry:
    """One task to import: a line of `path`, in one epoch, for `target`."""

    path: Path
    line: TaskLine
    target: ImportTarget
    epoch: int

    @property
    def blocks(self) -> tuple[QueryBlock, ...]:
        return self.line.blocks

    @property
    def tid(self) -> str:
        return self.line.tid if self.target.source is None else f"{self.target.source}/{self.line.tid}"

    @property
    def id(self) -> str:
        return task_id(self.target.policy, self.target.split, self.epoch, self.tid)

    @property
    def payload(self) -> TaskPayload:
        settings = self.target.settings
        return self.line.payload.model_copy(update=dict(settings)) if settings else self.line.payload


@dataclass(frozen=True, slots=True)
class ImportResult:
    inserted: int
    unchanged: int


async def import_task_file(
    store: Store, path: Path, target: ImportTarget, progress: Progress | None = None
) -> ImportResult:
    """Check the whole file, then import it. Raises TaskFileError, before the first write for every error in the file."""
    report = progress or (lambda phase, done, total: None)
    size = size_of(path)
    total = size * len(target.epochs)
    images = TaskImages(target.image_hosts)
    await check_stored(store, path, target, images, lambda done: report("checking", done, total))
    await store.begin()
    inserted = unchanged = 0
    for index, epoch in enumerate(target.epochs):
        entries = (Entry(path, line, target, epoch) for line in lines_of(path))
        for batch in batches(entries):
            new = await import_entries(store, batch, images)
            inserted += new
            unchanged += len(batch) - new
            report("importing", index * size + batch[-1].line.end, total)
    return ImportResult(inserted, unchanged)


async def check_stored(
    store: Store, path: Path, target: ImportTarget, images: TaskImages, report: Callable[[int], None]
) -> int:
    """The first pass: errors in the file and its images, then conflicts with stored payloads. Returns the number of lines."""
    conflicts: list[LineError] = []
    count = 0
    for batch in batches(checked_lines(path, target.payload_model)):
        count += len(batch)
        conflicts += _unplayable(path, batch, target)
        lines = batch
        if any(line.blocks for line in batch):
            lines, errors = await images.check([(path, line) for line in batch])
            conflicts += errors
        for epoch in target.epochs:
            entries = [Entry(path, line, target, epoch) for line in lines]
            conflicts += _conflicts(entries, await store.tasks.existing_payloads([entry.id for entry in entries]))
        report(batch[-1].end * len(target.epochs))
        if len(conflicts) >= MAX_ERRORS:
            break
    if conflicts:
        raise TaskFileError(conflicts[:MAX_ERRORS])
    return count


def check_playable(path: Path, target: ImportTarget) -> None:
    """Read the whole file. Raises TaskFileError for its errors and for tasks that samplers cannot play."""
    problems: list[LineError] = []
    for batch in batches(checked_lines(path, target.payload_model)):
        problems += _unplayable(path, batch, target)
        problems += [error for line in batch for error in missing_files(path, line)]
        if len(problems) >= MAX_ERRORS:
            break
    if problems:
        raise TaskFileError(problems[:MAX_ERRORS])


def _unplayable(path: Path, lines: Sequence[TaskLine], target: ImportTarget) -> list[LineError]:
    return [
        LineError(str(path), entry.line.number, text)
        for entry in (Entry(path, line, target, 0) for line in lines)
        for text in _problems(entry)
    ]


def _problems(entry: Entry) -> Iterator[str]:
    target, payload = entry.target, entry.payload
    if target.split == TRAIN_SPLIT and payload.temperature is not None:
        yield from filter(None, [temperature_problem(payload.temperature)])
    if target.check is not None:
        has_images = bool(entry.blocks)
        yield from target.check.problems(payload, f"{entry.path}:{entry.line.number}", has_images=has_images)


async def import_entries(store: Store, entries: Sequence[Entry], images: TaskImages) -> int:
    """Insert the tasks that are not stored yet, in this order, after their images; returns their number. All are of one policy
    and split.

    A concurrent import costs a retry and leaves no gap.
    """
    inserted = 0
    batch = entries
    if any(entry.line.blocks for entry in entries):
        lines = await images.store(store, [(entry.path, entry.line) for entry in entries])
        batch = [replace(entry, line=line) for entry, line in zip(entries, lines, strict=True)]
    while True:
        stored = await store.tasks.existing_payloads([entry.id for entry in batch])
        conflicts = _conflicts(batch, stored)
        if conflicts:
            raise TaskFileError(conflicts[:MAX_ERRORS])
        missing = [entry for entry in batch if entry.id not in stored]
        if not missing:
            break
        first = await store.tasks.next_seq(batch[0].target.policy, batch[0].target.split)
        tasks = [_task(entry, seq) for seq, entry in enumerate(missing, start=first)]
        inserted += await store.tasks.insert_new(tasks, ordered=True)
        if len(missing) == len(batch) and inserted == len(batch):
            break
    await _apply_curriculum(store, batch)
    return inserted


async def _apply_curriculum(store: Store, batch: Sequence[Entry]) -> None:
    """Apply the pass band to tasks whose previous epoch was settled before they were imported."""
    waiting = [entry for entry in batch if entry.epoch > 0 and entry.payload.has_pass_band]
    before = [task_id(e.target.policy, e.target.split, e.epoch - 1, e.tid) for e in waiting]
    for task in await store.tasks.ended_of(before) if before else ():
        await store.tasks.skip_next_epoch(task)


def _conflicts(batch: Sequence[Entry], stored: Mapping[str, Mapping[str, Any]]) -> list[LineError]:
    errors = []
    for entry in batch:
        old = stored.get(entry.id)
        if old is None:
            continue
        new = entry.payload.model_dump()
        different = [name for name in new if old.get(name) != new[name]]
        if old.get("query_blocks") and not entry.payload.query_blocks:  # `new` leaves it out
            different.append("query_blocks")
        names = ", ".join(f'"{name}"' for name in different)
        if names:
            text = f"task {entry.id} is stored with another {names}; give it another id, or use another run"
            errors.append(LineError(str(entry.path), entry.line.number, text))
    return errors


def _task(entry: Entry, seq: int) -> Task:
    target = entry.target
    return Task(
        id=entry.id,
        tid=entry.tid,
        split=target.split,
        epoch=entry.epoch,
        policy=target.policy,
        seq=seq,
        source=target.source or entry.line.source,
        at_version=target.at_version,
        payload=entry.payload,
        num_generations=target.num_generations,
        slots=[Slot(traj_id=k, free_at=EPOCH) for k in range(target.num_generations)],
        scores=[],
        free_at=EPOCH,
    )
