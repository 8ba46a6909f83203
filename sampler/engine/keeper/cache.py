"""A folder of this process's own among those of its neighbors, for weights that are put together here.

    PARENT/0, PARENT/1, …   the first that no process holds; what a killed holder left is found, and used or cleared, by the next

The lock is the kernel's (`flock`), so it ends with its process. Nothing is read or written through a link that another user put
there.
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
    """A folder that no other process is given meanwhile; removed at the end. Raises ConfigError where it is another user's."""
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
