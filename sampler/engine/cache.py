"""A folder of this process's own among those of its neighbors, for weights that are put together here.

    PARENT/0, PARENT/1, …   the first that nobody holds; what a killed holder left is found, and used or cleared, by the next

The lock is the kernel's (`flock`), so it ends with its process.
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path


@contextmanager
def own_folder(parent: Path) -> Iterator[Path]:
    """A folder that no other process is given meanwhile; it is removed at the end."""
    parent.mkdir(parents=True, exist_ok=True)
    for number in count():
        with (parent / f"{number}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            folder = parent / str(number)
            folder.mkdir(exist_ok=True)
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return
