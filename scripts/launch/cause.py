"""The cause of a run's end in one line: the launcher's last one, whichever child died first.

A database that died is the cause of what its clients then say; a full disk is the cause of what a database says, or cannot say:
its log lies on the same disk.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from scripts.launch.children import Child, describe_exit
from shared.outside_text import clipped

FULL_BELOW_BYTES = 32 << 20  # a database needs some to write a checkpoint
MAX_CHARS = 400
FATAL = ("F", "E")  # severities in MongoDB's log
FULL = "no space left on device"


def cause_of(children: Sequence[Child], folder: Path) -> str | None:
    """Of the children that died, what the first one died of; None: none died. `folder`: of the run's output."""
    dead = [child for child in children if child.died]
    if not dead:
        return None
    first = min(dead, key=lambda child: (child.kind != "mongod", child.died_at))
    disk = full_disk(folder) or full_disk(first.log_path.parent)
    how = f"{first.name} (pid {first.process.pid}) {describe_exit(first.returncode)}"
    said = database_error(first.log_text()) if first.kind == "mongod" else first.error()
    return f"{how}{f': {said}' if said else ''}{disk}; its log: {first.log_path}"


def database_error(log: str) -> str:
    """What a MongoDB server died of: the first full disk in its log, else its last fatal message, else its last error."""
    found = [(severity, text) for severity, text in map(_severe, log.splitlines()) if severity]
    full = [text for _, text in found if FULL in text.lower()]
    last = [text for severity in FATAL for text in [t for s, t in found if s == severity][-1:]]
    text = next(iter([*full, *last]), "")
    return clipped(" ".join(text.split()), MAX_CHARS)


def _severe(line: str) -> tuple[str, str]:
    """(severity, message with the error in it) of a line of a MongoDB server's log; nothing of one that is no error."""
    try:
        entry = json.loads(line)
    except ValueError:
        return "", ""
    if not isinstance(entry, dict) or entry.get("s") not in FATAL:
        return "", ""
    attributes = entry.get("attr")
    error = _error_in(attributes) if isinstance(attributes, dict) else ""
    return str(entry["s"]), f"{entry.get('msg')}{f' ({error})' if error else ''}"


def _error_in(attributes: dict[str, object]) -> str:
    message = attributes.get("message")
    if isinstance(message, dict):  # of the storage engine
        return f"{message.get('msg')}: {message.get('error_str')}"
    return str(message or attributes.get("error") or attributes.get("reason") or "")


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
