"""Complete weights from what was published: the directory itself, an older one and the changes since, or an adapter.

    version 7 ◀─delta─ 8 ◀─delta─ 9 ◀─delta─ 10 (full too) ◀─delta─ 11      routes to 11: 10 + one delta, 7 + four,
                                                                            or what lies in the cache + what is missing
    version 0 ◀─adapter─ 7, version 0 ◀─adapter─ 8, …                       routes to 8: version 0 + its adapter

Promise: a folder that `Assembly.reach` returns holds the announced version byte for byte, or nothing is returned. What does not
have its announced checksum (a flipped bit, a cut or missing file, a damaged cache) closes the routes that lead over it, and the
next one is tried; the message names every route and what closed it. Where an adapter is damaged, the one before it is next. The
cache has one process that writes it.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from shared.documents.run import FileEntry, PolicyVersion
from shared.errors import DataError
from shared.weights.adapters import ADAPTER_FOLDER, Adapter, merge_into
from shared.weights.deltas import apply_delta
from shared.weights.files import DELTA_FILE, WEIGHTS_FILE, verify_files

TEMPORARY = "unfinished"
Change = Callable[[Path], None]  # makes a folder with the files of one version into the next one's


@dataclass(frozen=True, slots=True)
class Route:
    """From the complete files of `start`, in `folder`, to each of `steps` in turn, by its changes or its adapter."""

    start: PolicyVersion
    folder: Path
    steps: tuple[PolicyVersion, ...]
    bytes: int  # to be read from where versions are published
    cached: bool

    @property
    def end(self) -> PolicyVersion:
        return self.steps[-1] if self.steps else self.start

    def up_to(self, count: int) -> "Route":
        """The first `count` steps alone."""
        folder = self.folder if count or self.cached else Path(self.start.path)  # an engine may not see the other
        return replace(self, steps=self.steps[:count], folder=folder)

    def __str__(self) -> str:
        start = f"{'the cached' if self.cached else 'full'} version {self.start.version}"
        kind = "an adapter" if self.end.adapter else f"{len(self.steps)} deltas"
        return f"{start} and {kind}" if self.steps else start


@dataclass(frozen=True, slots=True)
class Reached:
    """`folder` holds all files of `version`. `problems`: why it is not the version that was asked for; empty where it is.

    `seconds` and `bytes` are those of getting there, by phase: read (changes), copy, apply, verify.
    """

    version: PolicyVersion
    folder: Path
    problems: tuple[str, ...]
    seconds: Mapping[str, float]
    bytes: int


class Assembly:
    """`cache`: a folder of its own, for the versions that it puts together; made, and its leftovers removed, at the start.

    `first`: where the files of version 0 are at hand; None: where they were announced, only.
    """

    def __init__(self, cache: Path, first: Path | None = None) -> None:
        self._cache = cache
        self._first = first.resolve() if first else None
        cache.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(cache / TEMPORARY, ignore_errors=True)

    def reach(self, wanted: PolicyVersion, published: Sequence[PolicyVersion], newer_than: int = -1) -> Reached:
        """The folder of `wanted`; where that cannot be had, of the newest version on the way to it that is above `newer_than`.

        `published`: all versions that were announced. Raises DataError where no route leads that far.
        """
        problems: list[str] = []
        part_way: list[tuple[Route, _Changes]] = []
        for version in (wanted, *_adapters_before(wanted, published, newer_than)):
            for route in self.routes(version, published):
                changes = _read(route)
                if changes.problem:
                    problems.append(f"{route}: {changes.problem}")
                    part_way.append((route.up_to(len(changes.found)), changes))
                    continue
                try:
                    return self._follow(route, changes, () if version is wanted else tuple(problems))
                except DataError as exc:
                    problems.append(f"{route}: {exc}")
        for route, changes in sorted(part_way, key=lambda part: -part[0].end.version):
            if route.end.version <= newer_than:
                break
            try:
                return self._follow(route, changes, tuple(problems))
            except DataError as exc:
                problems.append(f"{route}: {exc}")
        problems = problems or ["no complete version is left that it could be made of"]
        raise DataError(f"version {wanted.version} cannot be put together: " + "; ".join(problems))

    def routes(self, wanted: PolicyVersion, published: Sequence[PolicyVersion]) -> list[Route]:
        """Every way to `wanted`, the one with the fewest bytes to read first."""
        found = []
        steps: tuple[PolicyVersion, ...] = ()
        size = 0
        for version in ancestors(wanted, published):
            if (cached := self._folder(version)).is_dir():
                found.append(Route(version, cached, steps, size, True))
            at_hand = self._first if version.version == 0 and steps else None  # itself is loaded where it was announced
            if at_hand is not None:
                found.append(Route(version, at_hand, steps, size, False))
            if version.kind == "full" and not version.pruned and Path(version.path) != at_hand:
                full = sum(entry["bytes"] for entry in version.files.values())
                found.append(Route(version, Path(version.path), steps, size + full, False))
            steps = (version, *steps)
            size += version.bytes_from_base
        return sorted(found, key=lambda route: (route.bytes, len(route.steps)))

    def keep_only(self, version: int) -> None:
        """Forget every other version that was put together."""
        for folder in self._cache.iterdir():
            if folder.name != f"v{version:06d}":
                shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, version: PolicyVersion) -> Path:
        return self._cache / f"v{version.version:06d}"

    def _follow(self, route: Route, changes: "_Changes", problems: tuple[str, ...]) -> Reached:
        clock = _Clock({"read": changes.seconds})
        try:
            folder = self._build(route, changes.found, clock) if route.steps else route.folder
            if not route.steps:
                verify_files(folder, route.end.files)
            clock.lap("verify")
        except OSError as exc:
            raise DataError(f"{type(exc).__name__}: {exc}") from exc
        except DataError:
            if route.cached:  # what has not its checksum now never will
                shutil.rmtree(route.folder, ignore_errors=True)
            raise
        return Reached(route.end, folder, problems, clock.seconds, route.bytes)

    def _build(self, route: Route, changes: Sequence[Change], clock: "_Clock") -> Path:
        temporary = self._cache / TEMPORARY
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for name in route.end.files:
            shutil.copyfile(route.folder / name, temporary / name)
        clock.lap("copy")
        for change in changes:
            change(temporary)
        clock.lap("apply")
        verify_files(temporary, route.end.files)
        target = self._folder(route.end)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
        return target


def ancestors(version: PolicyVersion, published: Sequence[PolicyVersion]) -> Iterator[PolicyVersion]:
    """`version`, the one that its changes are changes of, and so on."""
    known = {v.version: v for v in published}
    found: PolicyVersion | None = version
    while found is not None:
        yield found
        found = None if found.base is None else known.get(found.base)


def _adapters_before(
    wanted: PolicyVersion, published: Sequence[PolicyVersion], newer_than: int
) -> Iterator[PolicyVersion]:
    """What could stand in for `wanted` where that is an adapter, the newest first: each needs nothing but the base."""
    for version in sorted(published, key=lambda v: -v.version) if wanted.adapter else ():
        usable = version.adapter and version.withdrawn_to is None and not version.pruned
        if usable and newer_than < version.version < wanted.version:
            yield version


@dataclass(frozen=True, slots=True)
class _Changes:
    """The changes along a route, up to the first that is not as announced; `problem` tells about that one."""

    found: Sequence[Change]
    problem: str
    seconds: float


def _read(route: Route) -> _Changes:
    started = time.monotonic()
    found: list[Change] = []
    problem = ""
    for version in route.steps:
        try:
            found.append(_adapter(version) if version.adapter else _delta(version))
        except OSError as exc:
            problem = f"{exc.filename}: {exc.strerror}"
        except DataError as exc:
            problem = str(exc)
        if problem:
            break
    return _Changes(found, problem, time.monotonic() - started)


def _delta(version: PolicyVersion) -> Change:
    assert version.delta is not None, "a version on a route has changes"
    data = _announced(Path(version.path) / DELTA_FILE, version.delta)
    return lambda folder: apply_delta(data, folder / WEIGHTS_FILE)


def _adapter(version: PolicyVersion) -> Change:
    assert version.adapter is not None, "the caller looked"
    folder = Path(version.path) / ADAPTER_FOLDER
    files = {name: _announced(folder / name, entry) for name, entry in version.adapter.items()}
    return partial(merge_into, adapter=Adapter.parse(folder, files), threads=len(os.sched_getaffinity(0)))


def _announced(path: Path, entry: FileEntry) -> bytes:
    """The bytes of `path`. Raises OSError, and DataError where they are not those that were announced."""
    found = path.read_bytes()
    if (digest := hashlib.sha256(found).hexdigest()) != entry["sha256"]:
        raise DataError(
            f"{path}: {len(found)} bytes with sha256 {digest}; expected {entry['bytes']} bytes with "
            f"{entry['sha256']}: the file was cut, changed or damaged"
        )
    return found


class _Clock:
    """Seconds by phase."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self._last = time.monotonic()

    def lap(self, phase: str) -> None:
        now = time.monotonic()
        self.seconds[phase], self._last = now - self._last, now
