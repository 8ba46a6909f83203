"""Temporary folders of a process, which need not live to remove them: the next one that is made with the same prefix does.

A folder is locked while its process lives (`flock` on the folder itself, which the kernel ends with the process, however that
ends). One that nothing locks is left over.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TemporaryFolder:
    """Only its owner may read it."""

    path: Path
    _lock: int

    @classmethod
    def make(cls, prefix: str, *, cleaning: bool = True) -> "TemporaryFolder":
        """`cleaning`: also remove what killed processes left of this prefix, which looks at each folder of it."""
        if cleaning:
            remove_left(prefix)
        while True:
            path = Path(tempfile.mkdtemp(prefix=prefix))
            lock = _locked(path)
            if lock is not None:
                return cls(path, lock)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _locked(path: Path) -> int | None:
    """None: another process has it, or has removed it."""
    with contextlib.suppress(OSError):
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_ino == os.fstat(lock).st_ino:
                return lock
        except OSError:
            os.close(lock)
            raise
        os.close(lock)
    return None


def remove_left(prefix: str) -> None:
    """What killed processes left of this prefix."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        lock = _locked(path)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)
