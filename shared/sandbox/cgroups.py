"""Memory and processes of a start, counted by the kernel where the gateway may make cgroups: version 1, or 2 if delegated."""

import contextlib
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

NAME = "tandem-mcp-"
_ROOT = Path("/sys/fs/cgroup")
_MB = 1024 * 1024
# Of version 1, and of 2. With swap is written after without, which may not be more.
_MEMORY = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max", "memory.swap.max")


@cache
def parents() -> dict[str, Path]:
    """{controller: the folder in which the gateway may make cgroups}; empty: nowhere."""
    folders = {}
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in {"memory", "pids"} & set(controllers.split(",")):
            folder = _ROOT / controller / path.strip("/")
            folders[controller] = folder
        if controllers == "" and (_ROOT / "cgroup.controllers").exists():
            folder = _ROOT / path.strip("/")
            if _delegates(folder):
                folders |= {"memory": folder, "pids": folder}
    return {controller: folder for controller, folder in folders.items() if _works(folder)}


def make(name: str, memory_mb: int, processes: int) -> list[str]:
    """Folders of cgroups to join. What a machine has not is left out."""
    made: dict[str, None] = {}
    for controller, parent in parents().items():
        folder = f"{parent}/{NAME}{name}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        for file in _limits_of(controller, folder.rpartition("/")[0]):
            value = processes if controller == "pids" else 0 if file == "memory.swap.max" else memory_mb * _MB
            with contextlib.suppress(OSError):  # without swap there is no limit of it
                _write(f"{folder}/{file}", str(value).encode())
        made[folder] = None
    return list(made)


_limit_files: dict[tuple[str, str], list[str]] = {}


def _limits_of(controller: str, parent: str) -> list[str]:
    """The files that limit it here, in the order in which they are written. A new cgroup has what its siblings have."""
    if (controller, parent) not in _limit_files:
        names = {"memory": _MEMORY, "pids": ("pids.max",)}[controller]
        tried = f"{parent}/{NAME}files-{os.getpid()}"
        os.mkdir(tried)
        _limit_files[controller, parent] = [name for name in names if os.path.exists(f"{tried}/{name}")]
        os.rmdir(tried)
    return _limit_files[controller, parent]


def _write(path: str, value: bytes) -> None:
    opened = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(opened, value)
    finally:
        os.close(opened)


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
