"""Metrics of a run on disk: one JSON line per step, and any tracker that Accelerate knows (TensorBoard, W&B, ...).

Functions return metrics; the loop logs once per step, on the main process. A resumed run continues the file: lines of steps
beyond the checkpoint are removed before the first new one.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, get_available_trackers
from accelerate.utils import is_tensorboard_available

from shared.errors import ConfigError, DataError
from trainer.reporting.hyperparameters import flattened


class MetricsLog:
    """Use as a context manager, on the main process only. `resume_step`: the first step that will be logged.

    `trackers`: names, or "none"; None: TensorBoard if installed, with its files next to `path`. They log under `run_name` and
    receive `settings` at each start. Raises DataError if the file cannot be written (a full disk).
    """

    def __init__(
        self,
        path: Path,
        *,
        resume_step: int = 0,
        trackers: Sequence[str] | None = (),
        run_name: str = "run",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._path = path
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _forget_steps_from(path, resume_step)
            self._trackers = [_start_tracker(name, run_name, path.parent, resume_step) for name in _names(trackers)]
            for tracker in self._trackers if settings else ():
                tracker.store_init_configuration(flattened(settings or {}))
            self._file = path.open("ab", buffering=0)  # unbuffered, so that closing never retries a failed write

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line. Values that JSON lacks (nan, inf) are written as null.

        Raises DataError if it cannot be written.
        """
        plain = {key: value if math.isfinite(value) else None for key, value in sorted(metrics.items())}
        with _writing(self._path):
            line = (json.dumps({"step": step, **plain}) + "\n").encode()
            while line:  # a nearly full disk accepts only part of it
                line = line[self._file.write(line) :]
            for tracker in self._trackers:
                tracker.log(dict(metrics), step=step)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        for tracker in self._trackers:
            tracker.finish()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise DataError(
            f"{path} could not be written: {exc}; free disk space or repair the folder, and start again, "
            "which continues from the last checkpoint"
        ) from exc


def _forget_steps_from(path: Path, resume_step: int) -> None:
    """Keep the lines below `resume_step`; remove a last line truncated by a kill."""
    if not path.exists():
        return
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if entry["step"] < resume_step:
            lines.append(line + "\n")
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("".join(lines), encoding="utf-8")
    os.replace(temporary, path)


def _names(trackers: Sequence[str] | None) -> list[str]:
    if trackers is None:
        return ["tensorboard"] if is_tensorboard_available() else []
    return [name for name in trackers if name != "none"]


def _start_tracker(name: str, run_name: str, directory: Path, resume_step: int) -> GeneralTracker:
    if name not in LOGGER_TYPE_TO_CLASS:
        raise ConfigError(f"tracker {name!r}: not known; known are {', '.join(LOGGER_TYPE_TO_CLASS)} and none")
    if name not in map(str, get_available_trackers()):
        raise ConfigError(f"tracker {name!r}: its package is not installed")
    kind: Any = LOGGER_TYPE_TO_CLASS[name]
    places = [directory] if kind.requires_logging_directory else []
    options = {"purge_step": resume_step} if name == "tensorboard" else {}  # hides steps that a resume undoes
    tracker: GeneralTracker = kind(run_name, *places, **options)
    tracker.start()
    return tracker
