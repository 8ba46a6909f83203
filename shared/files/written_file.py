"""Atomic writing of files, which only this user can read unless they are public."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.errors import DataError


@contextmanager
def written_whole(path: Path, *, public: bool = False) -> Iterator[Path]:
    """Yield a temporary file next to `path`, with the same suffix; it replaces `path` at the end. Creates the folder.

    Its mode is 0600 from the beginning. `public`: it has neither a secret nor a conversation or an answer in it, and gets the
    mode of the user's other files.

    Raises DataError if it cannot be written (for example a full disk), then removes it and leaves an older file unchanged.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # An unpredictable name: in a shared folder, another user may have placed a link under a predictable one.
        descriptor, name = tempfile.mkstemp(prefix=f"{path.stem}.tmp-", suffix=path.suffix, dir=path.parent)
        os.close(descriptor)
        temporary = Path(name)
        try:
            yield temporary
            if public:
                temporary.chmod(0o666 & ~_umask())  # mkstemp uses mode 0600
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as exc:
        raise DataError(
            f"{path} could not be written: {exc}; free disk space or repair the folder, and start again"
        ) from exc


def _umask() -> int:
    """The umask from /proc: `os.umask` would change it for other threads in the meantime."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o077


def write_text_whole(path: Path, text: str, *, public: bool = False) -> None:
    """Write `text` atomically. `public` and DataError as for `written_whole`."""
    with written_whole(path, public=public) as temporary:
        temporary.write_text(text, encoding="utf-8")
