"""Assembles complete weights from published files: the directory itself, an older one and deltas, or an adapter.

    version 7 ◀─delta─ 8 ◀─delta─ 9 ◀─delta─ 10 (full too) ◀─delta─ 11      routes to 11: 10 + one delta, 7 + four,
                                                                            or the cached version + the missing deltas
    version 0 ◀─adapter─ 7, version 0 ◀─adapter─ 8, …                       routes to 8: version 0 + its adapter

Promise: a folder returned by `Assembly.reach` contains the announced version byte for byte. A file without its announced
checksum (a flipped bit, a truncated or missing file, a damaged cache) closes all routes over it, and the next route is tried;
the error names every route and what closed it. For a damaged adapter, the previous one is tried. Only one process writes the
cache.
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
Change = Callable[[Path], None]  # turns a folder with the files of one version into the next one's


@dataclass(frozen=True, slots=True)
class Route:
    """From the complete files of `start`, in `folder`, through each of `steps` by its delta or adapter."""

    start: PolicyVersion
    folder: Path
    steps: tuple[PolicyVersion, ...]
    bytes: int  # to read from the publish folder
    cached: bool

    @property
    def end(self) -> PolicyVersion:
        return self.steps[-1] if self.steps else self.start

    def up_to(self, count: int) -> "Route":
        """The route's first `count` steps."""
        folder = (
            self.folder if count or self.cached else Path(self.start.path)
        )  # an engine may not have access to the other
        return replace(self, steps=self.steps[:count], folder=folder)

    def __str__(self) -> str:
        start = f"{'the cached' if self.cached else 'full'} version {self.start.version}"
        kind = "an adapter" if self.end.adapter else f"{len(self.steps)} deltas"
        return f"{start} and {kind}" if self.steps else start


@dataclass(frozen=True, slots=True)
class Reached:
    """`folder` contains all files of `version`. `problems`: why it is not the wanted version; empty if it is.

    `seconds` and `bytes` are by phase: read (changes), copy, apply, verify.
    """

    version: PolicyVersion
    folder: Path
    problems: tuple[str, ...]
    seconds: Mapping[str, float]
    bytes: int


class Assembly:
    """`cache`: a separate folder for assembled versions; created, and cleared of leftovers, at the start.

    `first`: a local folder with the files of version 0; None: only the announced path.
    """

    def __init__(self, cache: Path, first: Path | None = None) -> None:
        self._cache = cache
        self._first = first.resolve() if first else None
        cache.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(cache / TEMPORARY, ignore_errors=True)

    def reach(self, target: PolicyVersion, published: Sequence[PolicyVersion], newer_than: int = -1) -> Reached:
        """Return the folder of `target` or, if unreachable, of the newest version on the way above `newer_than`.

        `published`: all announced versions. Raises DataError if no route leads that far.
        """
        problems: list[str] = []
        part_way: list[tuple[Route, _Changes]] = []
        for version in (target, *_adapters_before(target, published, newer_than)):
            for route in self.routes(version, published):
                changes = _read(route)
                if changes.problem:
                    problems.append(f"{route}: {changes.problem}")
                    part_way.append((route.up_to(len(changes.steps)), changes))
                    continue
                try:
                    return self._follow(route, changes, () if version is target else tuple(problems))
                except DataError as exc:
                    problems.append(f"{route}: {exc}")
        for route, changes in sorted(part_way, key=lambda part: -part[0].end.version):
            if route.end.version <= newer_than:
                break
            try:
                return self._follow(route, changes, tuple(problems))
            except DataError as exc:
                problems.append(f"{route}: {exc}")
        problems = problems or ["no complete version to start from exists"]
        raise DataError(f"version {target.version} cannot be assembled: " + "; ".join(problems))

    def routes(self, target: PolicyVersion, published: Sequence[PolicyVersion]) -> list[Route]:
        """All routes to `target`, fewest bytes to read first."""
        possible = []
        steps: tuple[PolicyVersion, ...] = ()
        size = 0
        for version in ancestors(target, published):
            cached = self._folder(version)
            if cached.is_dir():
                possible.append(Route(version, cached, steps, size, True))
            at_hand = (
                self._first if version.version == 0 and steps else None
            )  # version 0 itself is loaded from its announced path
            if at_hand is not None:
                possible.append(Route(version, at_hand, steps, size, False))
            if version.kind == "full" and not version.pruned and Path(version.path) != at_hand:
                full = sum(entry["bytes"] for entry in version.files.values())
                possible.append(Route(version, Path(version.path), steps, size + full, False))
            steps = (version, *steps)
            size += version.bytes_from_base
        return sorted(possible, key=lambda route: (route.bytes, len(route.steps)))

    def keep_only(self, version: int) -> None:
        """Delete all other assembled versions."""
        for folder in self._cache.iterdir():
            if folder.name != f"v{version:06d}":
                shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, version: PolicyVersion) -> Path:
        return self._cache / f"v{version.version:06d}"

    def _follow(self, route: Route, changes: "_Changes", problems: tuple[str, ...]) -> Reached:
        clock = _Clock({"read": changes.seconds})
        try:
            folder = self._build(route, changes.steps, clock) if route.steps else route.folder
            if not route.steps:
                verify_files(folder, route.end.files)
            clock.lap("verify")
        except OSError as exc:
            raise DataError(f"{type(exc).__name__}: {exc}") from exc
        except DataError:
            if route.cached:  # a wrong checksum is permanent
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
    """Yield `version`, its base, the base's base, and so on."""
    known = {v.version: v for v in published}
    ancestor: PolicyVersion | None = version
    while ancestor is not None:
        yield ancestor
        ancestor = None if ancestor.base is None else known.get(ancestor.base)


def _adapters_before(
    target: PolicyVersion, published: Sequence[PolicyVersion], newer_than: int
) -> Iterator[PolicyVersion]:
    """Fallbacks for an adapter version `target`, the newest first: each needs only the base."""
    for version in sorted(published, key=lambda v: -v.version) if target.adapter else ():
        usable = version.adapter and version.withdrawn_to is None and not version.pruned
        if usable and newer_than < version.version < target.version:
            yield version


@dataclass(frozen=True, slots=True)
class _Changes:
    """The changes along a route, up to the first that differs from its announcement; `problem` describes that one."""

    steps: Sequence[Change]
    problem: str
    seconds: float


def _read(route: Route) -> _Changes:
    started = time.monotonic()
    changes: list[Change] = []
    problem = ""
    for version in route.steps:
        try:
            changes.append(_adapter(version) if version.adapter else _delta(version))
        except OSError as exc:
            problem = f"{exc.filename}: {exc.strerror}"
        except DataError as exc:
            problem = str(exc)
        if problem:
            break
    return _Changes(changes, problem, time.monotonic() - started)


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
    """The bytes of `path`. Raises OSError, or DataError if they differ from the announcement."""
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != entry["sha256"]:
        raise DataError(
            f"{path}: {len(content)} bytes with sha256 {digest}; expected {entry['bytes']} bytes with "
            f"{entry['sha256']}: the file was truncated, changed or damaged"
        )
    return content


class _Clock:
    """Seconds by phase."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self._last = time.monotonic()

    def lap(self, phase: str) -> None:
        now = time.monotonic()
        self.seconds[phase], self._last = now - self._last, now
