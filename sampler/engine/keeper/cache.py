"""A private folder of this process, where published changes and adapters are merged into weights.

    PARENT/0, PARENT/1, …   the first that no process holds; the next holder uses or clears the contents of a killed one

The lock is the kernel's (`flock`), so it ends with its process. Nothing is read or written through links that another user
created there.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from shared.files.private_folder import open_own, require_own


@contextmanager
def own_folder(parent: Path) -> Iterator[Path]:
    """A folder exclusive to this process; removed at the end. Raises ConfigError if it belongs to another user."""
    parent.mkdir(parents=True, exist_ok=True)
    for number in count():
        with os.fdopen(open_own(parent / f"{number}.lock"), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            folder = parent / str(number)
            with suppress(FileExistsError):
                folder.mkdir()
            require_own(folder)
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return
