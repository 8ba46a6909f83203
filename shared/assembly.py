"""Complete weights from what was published: the directory itself, or a complete older one and the changes since.

    version 7 ◀─delta─ 8 ◀─delta─ 9 ◀─delta─ 10 (full too) ◀─delta─ 11      routes to 11: 10 + one delta, 7 + four,
                                                                            or what lies in the cache + what is missing

Promise: a folder that `Assembly.reach` returns holds the announced version byte for byte, or nothing is returned. What does not
have its announced checksum (a flipped bit, a cut or missing file, a damaged cache) closes the routes that lead over it, and the
next one is tried; the message names every route and what closed it. The cache has one process that writes it.
"""

import hashlib
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shared.deltas import apply_delta
from shared.errors import DataError
from shared.run_documents import PolicyVersion
from shared.weights import DELTA_FILE, WEIGHTS_FILE, verify_files

TEMPORARY = "unfinished"


@dataclass(frozen=True, slots=True)
class Route:
    """From the complete files of `start`, in `folder`, over the changes of each of `deltas` in turn."""

    start: PolicyVersion
    folder: Path
    deltas: tuple[PolicyVersion, ...]
    bytes: int  # to be read from where versions are published
    cached: bool

    @property
    def end(self) -> PolicyVersion:
        return self.deltas[-1] if self.deltas else self.start

    def __str__(self) -> str:
        start = f"{'the cached' if self.cached else 'full'} version {self.start.version}"
        return start + (f" and {len(self.deltas)} deltas" if self.deltas else "")


@dataclass(frozen=True, slots=True)
class Reached:
    """`folder` holds all files of `version`. `problems`: why it is not the version that was asked for; empty where it is.

    `seconds` and `bytes` are those of getting there, by phase: read (deltas), copy, apply, verify.
    """

    version: PolicyVersion
    folder: Path
    problems: tuple[str, ...]
    seconds: Mapping[str, float]
    bytes: int


class Assembly:
    """`cache`: a folder of its own, for the versions that it puts together; made, and its leftovers removed, at the start."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        cache.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(cache / TEMPORARY, ignore_errors=True)

    def reach(self, wanted: PolicyVersion, published: Sequence[PolicyVersion], newer_than: int = -1) -> Reached:
        """The folder of `wanted`; where that cannot be had, of the newest version on the way to it that is above `newer_than`.

        `published`: all versions that were announced. Raises DataError where no route leads that far.
        """
        problems: list[str] = []
        part_way: list[tuple[Route, _Deltas]] = []
        for route in self.routes(wanted, published):
            deltas = _read_deltas(route)
            if deltas.problem:
                problems.append(f"{route}: {deltas.problem}")
                part_way.append((replace(route, deltas=route.deltas[: len(deltas.data)]), deltas))
                continue
            try:
                return self._follow(route, deltas, ())
            except DataError as exc:
                problems.append(f"{route}: {exc}")
        for route, deltas in sorted(part_way, key=lambda part: -part[0].end.version):
            if route.end.version <= newer_than:
                break
            try:
                return self._follow(route, deltas, tuple(problems))
            except DataError as exc:
                problems.append(f"{route}: {exc}")
        problems = problems or ["no complete version is left that it could be made of"]
        raise DataError(f"version {wanted.version} cannot be put together: " + "; ".join(problems))

    def routes(self, wanted: PolicyVersion, published: Sequence[PolicyVersion]) -> list[Route]:
        """Every way to `wanted`, the one with the fewest bytes to read first."""
        found = []
        deltas: tuple[PolicyVersion, ...] = ()
        size = 0
        for version in ancestors(wanted, published):
            if (cached := self._folder(version)).is_dir():
                found.append(Route(version, cached, deltas, size, True))
            if version.kind == "full" and not version.pruned:
                full = sum(entry["bytes"] for entry in version.files.values())
                found.append(Route(version, Path(version.path), deltas, size + full, False))
            deltas = (version, *deltas)
            size += version.delta["bytes"] if version.delta else 0
        return sorted(found, key=lambda route: (route.bytes, len(route.deltas)))

    def keep_only(self, version: int) -> None:
        """Forget every other version that was put together."""
        for folder in self._cache.iterdir():
            if folder.name != f"v{version:06d}":
                shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, version: PolicyVersion) -> Path:
        return self._cache / f"v{version.version:06d}"

    def _follow(self, route: Route, deltas: "_Deltas", problems: tuple[str, ...]) -> Reached:
        clock = _Clock({"read": deltas.seconds})
        try:
            folder = self._build(route, deltas.data, clock) if route.deltas else route.folder
            if not route.deltas:
                verify_files(folder, route.end.files)
            clock.lap("verify")
        except OSError as exc:
            raise DataError(f"{type(exc).__name__}: {exc}") from exc
        except DataError:
            if route.cached:  # what has not its checksum now never will
                shutil.rmtree(route.folder, ignore_errors=True)
            raise
        return Reached(route.end, folder, problems, clock.seconds, route.bytes)

    def _build(self, route: Route, deltas: Sequence[bytes], clock: "_Clock") -> Path:
        beside = self._cache / TEMPORARY
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        for name in route.end.files:
            shutil.copyfile(route.folder / name, beside / name)
        clock.lap("copy")
        for delta in deltas:
            apply_delta(delta, beside / WEIGHTS_FILE)
        clock.lap("apply")
        verify_files(beside, route.end.files)
        target = self._folder(route.end)
        shutil.rmtree(target, ignore_errors=True)
        beside.rename(target)
        return target


def ancestors(version: PolicyVersion, published: Sequence[PolicyVersion]) -> Iterator[PolicyVersion]:
    """`version`, the one that its changes are changes of, and so on."""
    known = {v.version: v for v in published}
    found: PolicyVersion | None = version
    while found is not None:
        yield found
        found = None if found.base is None else known.get(found.base)


@dataclass(frozen=True, slots=True)
class _Deltas:
    """The files with the changes along a route, up to the first that is not as announced; `problem` tells about that one."""

    data: Sequence[bytes]
    problem: str
    seconds: float


def _read_deltas(route: Route) -> _Deltas:
    started = time.monotonic()
    data: list[bytes] = []
    problem = ""
    for version in route.deltas:
        path = Path(version.path) / DELTA_FILE
        try:
            found = path.read_bytes()
        except OSError as exc:
            problem = f"{path}: {exc.strerror}"
            break
        assert version.delta is not None, "a version on a route has changes"
        if (digest := hashlib.sha256(found).hexdigest()) != version.delta["sha256"]:
            problem = (
                f"{path}: {len(found)} bytes with sha256 {digest}; expected {version.delta['bytes']} bytes with "
                f"{version.delta['sha256']}: the file was cut, changed or damaged"
            )
            break
        data.append(found)
    return _Deltas(data, problem, time.monotonic() - started)


class _Clock:
    """Seconds by phase."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self._last = time.monotonic()

    def lap(self, phase: str) -> None:
        now = time.monotonic()
        self.seconds[phase], self._last = now - self._last, now
