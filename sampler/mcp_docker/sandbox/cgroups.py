"""Memory and processes of a start, counted by the kernel where the gateway may make cgroups: version 1, or 2 if delegated."""

import contextlib
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

NAME = "tandem-mcp-"
_ROOT = Path("/sys/fs/cgroup")
_MB = 1024 * 1024


@cache
def parents() -> dict[str, Path]:
    """{controller: the folder in which the gateway may make cgroups}; empty: nowhere."""
    found = {}
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in {"memory", "pids"} & set(controllers.split(",")):
            folder = _ROOT / controller / path.strip("/")
            found[controller] = folder
        if controllers == "" and (_ROOT / "cgroup.controllers").exists():
            folder = _ROOT / path.strip("/")
            if _delegates(folder):
                found |= {"memory": folder, "pids": folder}
    return {controller: folder for controller, folder in found.items() if _works(folder)}


def make(name: str, memory_mb: int, processes: int) -> list[str]:
    """Folders of cgroups to join. What a machine has not is left out."""
    made = []
    for controller, parent in parents().items():
        folder = parent / f"{NAME}{name}"
        folder.mkdir(exist_ok=True)
        if controller == "memory":
            _write(folder, ("memory.limit_in_bytes", "memory.max"), memory_mb * _MB)
            _write(folder, ("memory.memsw.limit_in_bytes",), memory_mb * _MB)
            _write(folder, ("memory.swap.max",), 0)
        else:
            _write(folder, ("pids.max",), processes)
        if str(folder) not in made:
            made.append(str(folder))
    return made


def remove(folders: Iterable[str]) -> None:
    """Those that no process has joined; a warden removes its own."""
    for folder in folders:
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def left_over(prefix: str) -> list[Path]:
    """Cgroups whose name begins with `prefix`."""
    return [folder for parent in set(parents().values()) for folder in parent.glob(f"{NAME}{prefix}*")]


def members(folder: Path) -> list[int]:
    try:
        return [int(pid) for pid in (folder / "cgroup.procs").read_text(encoding="ascii").split()]
    except OSError:
        return []


def _write(folder: Path, names: tuple[str, ...], value: int) -> None:
    for name in names:
        if (folder / name).exists():
            with contextlib.suppress(OSError):  # without swap there is no limit of it
                (folder / name).write_text(str(value), encoding="ascii")


def _delegates(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        enabled = (folder / "cgroup.subtree_control").read_text(encoding="ascii").split()
        if not {"memory", "pids"} <= set(enabled):
            (folder / "cgroup.subtree_control").write_text("+memory +pids", encoding="ascii")
        return True
    return False


def _works(folder: Path) -> bool:
    """May this process make a cgroup there?"""
    tried = folder / f"{NAME}try-{os.getpid()}"
    try:
        tried.mkdir()
        tried.rmdir()
    except OSError:
        return False
    return True
