"""A file that a person is given: it appears whole, or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.errors import DataError


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A place beside `path` to write to, with the same suffix, which takes its name at the end; its folder is made.

    Raises DataError where it cannot be written (a full disk, say); then nothing of it stays, and an older file is as it was.
    """
    beside = path.with_name(f"{path.stem}.tmp{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield beside
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as exc:
        raise DataError(f"{path} could not be written: {exc}; make room, or mend the folder, and start again") from exc


def write_text_whole(path: Path, text: str) -> None:
    """Raises DataError as `written_whole` does."""
    with written_whole(path) as beside:
        beside.write_text(text, encoding="utf-8")
