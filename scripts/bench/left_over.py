"""What a gateway of MCP-Docker left: of its own state folder alone: other gateways of the machine are not counted."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from shared.processes.guarded import MARK
from shared.sandbox import cgroups
from shared.sandbox.folders import folder_key


def left_over(state: Path, seen: Iterable[psutil.Process] = ()) -> dict[str, int]:
    """Processes, folders and cgroups. `seen`: processes that a gateway of this folder had."""
    found = {process.pid for process in (*_marked(state), *filter(_lives, seen))}
    return {
        "processes": len(found - {os.getpid()}),
        "folders": sum(path.is_dir() for path in state.iterdir()),
        "cgroups": len(cgroups.left_over(folder_key(state))),
    }


def _marked(state: Path) -> Iterator[psutil.Process]:
    """Wardens, tools and the process that forks carry the folder's mark; a gateway is started with the folder's path."""
    mark = folder_key(state) + "-"
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
            if str(state) in process.cmdline() or process.environ().get(MARK, "").startswith(mark):
                yield process


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
