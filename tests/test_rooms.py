"""Every import points down: no room imports, over any way, what imports it, and the sampler's core imports no tenant.

A room is a folder of a package, or a file beside the folders. Files that are started, and the doors that only name what others
define (`__init__.py`, `sampler/scorers.py`, …), stand above all rooms. Imports inside of functions count.
"""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {  # import name: folder
    "shared": "shared",
    "sampler": "sampler",
    "sampler.core": "sampler/core",
    "sampler.bundled_scorers": "sampler/bundled_scorers",
    "sampler.gateway": "sampler/gateway",
    "sampler.environments": "sampler/environments",
    "sampler.engine": "sampler/engine",
    "sampler.mcp_docker": "sampler/mcp_docker",
    "trainer": "trainer",
    "tandem": "scripts/tandem",
}
DOORS = {"sampler/history.py", "sampler/scorers.py", "sampler/settlement.py"}
TENANTS = ("actors", "bundled_scorers", "engine", "environments", "gateway", "mcp_docker")
# Rooms that import each other today. This list may only shrink.
TANGLED: dict[str, list[set[str]]] = {}


@cache
def imports() -> dict[str, set[str]]:
    """By module: the modules of ours that it imports."""
    files = {}
    for name in ("shared", "sampler", "trainer", "tandem"):
        base = ROOT / FOLDERS[name]
        for file in base.rglob("*.py"):
            place = file.relative_to(ROOT).as_posix()
            if file.name in ("__init__.py", "__main__.py") or place in DOORS:
                continue
            files[".".join([name, *file.relative_to(base).with_suffix("").parts])] = file
    return {module: {one for one in _imported(file) if one in files} for module, file in files.items()}


def _imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    return names


def arrows(package: str) -> dict[str, set[str]]:
    """By room: the other rooms of the package that it imports."""
    rooms: defaultdict[str, set[str]] = defaultdict(set)
    for module, targets in imports().items():
        for target in targets:
            if module.startswith(f"{package}.") and target.startswith(f"{package}."):
                room, other = (one.removeprefix(f"{package}.").split(".")[0] for one in (module, target))
                if room != other:
                    rooms[room].add(other)
    return rooms


def tangled(rooms: dict[str, set[str]]) -> list[set[str]]:
    """The largest sets of rooms each of which imports every other, over any way (strongly connected components)."""
    reached = {room: _reached(room, rooms) for room in rooms}
    sets = {frozenset({room, *(o for o in reached[room] if room in reached.get(o, ()))}) for room in rooms}
    return sorted((set(one) for one in sets if len(one) > 1), key=sorted)


def _reached(room: str, rooms: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    new = {room}
    while new:
        new = {other for one in new for other in rooms.get(one, ())} - seen
        seen |= new
    return seen


@pytest.mark.parametrize("package", FOLDERS)
def test_no_room_imports_what_imports_it(package: str) -> None:
    assert tangled(arrows(package)) == TANGLED.get(package, [])


def test_the_core_imports_no_tenant() -> None:
    upward = {
        (module, target)
        for module, targets in imports().items()
        for target in targets
        if module.startswith("sampler.core.")
        and target.startswith("sampler.")
        and not target.startswith("sampler.core.")
    }
    assert upward == set()


def test_tenants_import_each_other_only_downward() -> None:
    """Environments seat actors, and an engine's keeper stands alone; nothing else knows of a neighbour."""
    pairs = {
        (room, other) for room, others in arrows("sampler").items() for other in others if {room, other} <= set(TENANTS)
    }
    assert pairs <= {("environments", "actors")}


def test_the_check_sees_a_way_back() -> None:
    assert tangled({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]
    assert tangled({"a": {"b"}, "b": {"c"}}) == []
