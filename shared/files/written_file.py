"""A file that a person is given: it appears whole, or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.errors import DataError


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary file next to `path`, to write to, with the same suffix, which takes its name at the end; its folder is made.

    Raises DataError where it cannot be written (a full disk, say); then nothing of it stays, and an older file is as it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A new file under a name that cannot be foreseen: in a folder that users share, a link may wait under any other.
        descriptor, name = tempfile.mkstemp(prefix=f"{path.stem}.tmp-", suffix=path.suffix, dir=path.parent)
        os.close(descriptor)
        temporary = Path(name)
        try:
            yield temporary
            temporary.chmod(0o666 & ~_umask())  # mkstemp made it for this user alone
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as exc:
        raise DataError(f"{path} could not be written: {exc}; make room, or mend the folder, and start again") from exc


def _umask() -> int:
    """Read as the kernel tells it: asking `os.umask` would change it for other threads meanwhile."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o077


def write_text_whole(path: Path, text: str) -> None:
    """Raises DataError as `written_whole` does."""
    with written_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
