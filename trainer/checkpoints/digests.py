"""Digests of a checkpoint's files: each rank writes those of the files that it wrote, and a load compares all of them.

    digests-0.json   {"__0_0.distcp": {"sha256": ..., "bytes": ...}, "state.json": ..., ".metadata": ...}

Tensors with flipped bits are numbers like others, so nothing else would see them.
"""

import json
import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from shared.documents.run import FileEntry
from shared.errors import DataError
from shared.weights.files import entry_of, verify_files
from trainer.checkpoints.random_states import random_states_file
from trainer.process.parallel import Parallel

log = logging.getLogger(__name__)

PATTERN = "digests-*.json"


def digest(files: "Future[Any]", folder: Path, parallel: Parallel) -> None:
    """In a thread: waits until this rank's tensors are written, then writes the digests of this rank's files."""
    files.result()
    of_rank_0 = ("state.json", ".metadata") * parallel.is_main
    has_states = parallel.is_first_of_its_rows  # as where they are written
    write_digests(
        folder, parallel.rank, [*of_rank_0, *[random_states_file(folder, parallel.data.rank).name] * has_states]
    )


def refuse_damaged(path: Path, older: Sequence[Path], parallel: Parallel) -> None:
    """Rank 0 compares; every rank must call it. Raises DataError, which names the file, and the newest of the `older` ones."""
    previous = older[-1] if older else None
    problem = parallel.broadcast_object(_damage(path, previous) if parallel.is_main else None)
    if problem:
        raise DataError(problem)


def _damage(path: Path, previous: Path | None) -> str | None:
    try:
        verify_digests(path)
    except DataError as exc:
        remedy = f"the checkpoint before it is {previous}" if previous else "there is no checkpoint before it"
        return (
            f"{path}: damaged, and nothing was trained: {exc}; {remedy}: move the damaged directory away and start again "
            "with --undo_later_steps true, which continues from there"
        )
    return None


def write_digests(folder: Path, rank: int, others: Iterable[str]) -> None:
    """Of this rank's tensor files, which are complete, and of `others`, by name."""
    names = sorted({*(path.name for path in folder.glob(f"__{rank}_*")), *others})
    entries = {name: entry_of(folder / name) for name in names if (folder / name).is_file()}
    (folder / f"digests-{rank}.json").write_text(json.dumps(entries) + "\n", encoding="utf-8")


def verify_digests(folder: Path) -> None:
    """Raises DataError for a file that is not as it was written, by its name. Those of earlier versions have no digests."""
    manifest: dict[str, FileEntry] = {}
    for path in sorted(folder.glob(PATTERN)):
        try:
            manifest |= json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError) as exc:
            raise DataError(f"{path}: no readable digests ({exc}); expected the file as it was written") from exc
    if not manifest:
        log.warning("%s has no digests: it is of an earlier version, and is loaded unchecked", folder)
    verify_files(folder, manifest)
