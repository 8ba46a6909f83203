"""The folder of checkpoints: which are complete, which are being written, and who writes."""

import re
from pathlib import Path

from shared.errors import DataError
from shared.files.output_names import STEP_FOLDER
from trainer.checkpoints.atomic_directories import TEMPORARY, discard

PENDING = re.compile(rf"{STEP_FOLDER.pattern}{re.escape(TEMPORARY)}(?P<start>\d+)-.*")


def take_over(root: Path, step: int, trainer_generation: int) -> None:
    """Take over the folder for the new trainer, which begins from `step`: unfinished checkpoints of others are discarded.

    Call it before undoing later steps. Raises DataError if a newer checkpoint was finished since this start chose its own.
    """
    remove_pending(root, trainer_generation)
    newest = latest(root)
    if newest is not None and step_of(newest) != step:
        raise DataError(
            f"{newest} was finished by the previous trainer after this one had begun from step {step}; nothing was "
            "undone: start again, which continues from there"
        )


def remove_pending(root: Path, trainer_generation: int) -> None:
    """Remove unfinished checkpoints of this and earlier starts, but not of later ones."""
    pending = ((path, PENDING.fullmatch(path.name)) for path in root.glob("step-*"))
    discard(path for path, match in pending if match and int(match["start"]) <= trainer_generation)


def complete(root: Path) -> list[Path]:
    """Complete checkpoints, oldest first; unfinished ones have another name."""
    if not root.is_dir():
        return []
    folders = [path for path in root.iterdir() if STEP_FOLDER.fullmatch(path.name) and path.is_dir()]
    return sorted(folders, key=step_of)


def step_of(path: Path) -> int:
    """The step in a checkpoint's name."""
    return int(path.name.removeprefix("step-"))


def latest(root: Path) -> Path | None:
    """The newest complete checkpoint, or None."""
    folders = complete(root)
    return folders[-1] if folders else None
