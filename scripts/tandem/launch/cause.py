"""The cause of a run's end in one line: the launcher's last one, whichever child died first.

A database that died is the cause of what its clients then say; a full disk is the cause of what a database says, or cannot say:
its log lies on the same disk.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from shared.processes.mongod_log import database_error
from tandem.launch.children import Child, describe_exit

FULL_BELOW_BYTES = 32 << 20  # a database needs some to write a checkpoint


def cause_of(children: Sequence[Child], folder: Path) -> str | None:
    """Of the children that died, what the first one died of; None: none died. `folder`: of the run's output."""
    dead = [child for child in children if child.died]
    if not dead:
        return None
    first = min(dead, key=lambda child: (child.kind != "mongod", child.died_at))
    disk = full_disk(folder) or full_disk(first.log_path.parent)
    how = f"{first.name} (pid {first.process.pid}) {describe_exit(first.returncode)}"
    reason = database_error(first.log_text()) if first.kind == "mongod" else first.error()
    return f"{how}{f': {reason}' if reason else ''}{disk}; its log: {first.log_path}"


def full_disk(folder: Path) -> str:
    """A sentence where the disk below the folder is full; else nothing."""
    try:
        disk = shutil.disk_usage(folder)
    except OSError:
        return ""
    if disk.free >= FULL_BELOW_BYTES:
        return ""
    return (
        f"; the disk of {folder} is full ({disk.free / 1e6:.0f} MB free of {disk.total / 1e9:.1f} GB): free some, and start "
        "the same command again, which continues"
    )
