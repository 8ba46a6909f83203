"""Checkpoints of a run: trained parameters, optimizer, step, random states, and the caller's accounting.

    ROOT/step-000120/   complete, by its name     ROOT/step-000130.tmp-3-k3j/   being written, or left behind, by the third start
        __0_0.distcp …  sharded tensors (torch.distributed.checkpoint): any number of ranks may load them
        rng-0.pt …      random states, one file per data shard: ranks with the same rows share them
        state.json      {"step": 120, "world_size": 2, "trainer_generation": 3, "accounting": {...}}
        digests-0.json … checksums of the files that each rank wrote; a load refuses a file that differs

    save ─▶ copy in memory ─▶ files, by a thread, while the next steps are computed ─▶ settle: all ranks durable? then rename

Atomic: a kill at any byte, or a full disk, leaves the older checkpoints as they are. A resume on as many ranks is bit-exact.

Frozen parameters (for example those below adapters) are not saved: they are loaded from the run's initial model directory,
which must stay.

Only one trainer writes. A start takes over the folder (`take_over`) once it is the run's trainer: it renames unfinished
directories of earlier starts, which then cannot be finalised. A replaced trainer that was suspended checks its fence before
the final rename; if it is replaced between the two, the new start has already renamed the directory.
"""

import json
import logging
import pickle
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from shared.errors import ConfigError, DataError, LeaseLost
from shared.files.output_names import STEP_FOLDER, step_folder
from trainer.checkpoints.atomic_directories import TEMPORARY, discard, publish_directory, temporary_directory
from trainer.checkpoints.digests import digest, refuse_damaged
from trainer.checkpoints.random_states import random_states, random_states_file, restore_random_states
from trainer.process.parallel import Parallel
from trainer.step.learner import Learner

log = logging.getLogger(__name__)

PENDING = re.compile(rf"{STEP_FOLDER.pattern}{re.escape(TEMPORARY)}(?P<start>\d+)-.*")
STATE_FILE = "state.json"
# Optimizer state by parameter name, since parameter groups depend on the mesh. Not strict, since frozen parameters are
# missing; `load` compares the names itself.
TRAINED = StateDictOptions(flatten_optimizer_state_dict=True, ignore_frozen_params=True, strict=False)


@dataclass(frozen=True, slots=True)
class Resumed:
    """The result of `load`, apart from the tensors."""

    step: int
    accounting: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Write:
    """A pending checkpoint, which is being written."""

    step: int
    temporary: Path
    files: Future[Any]
    problem: str | None  # this rank's write error
    since: float


@dataclass(frozen=True, slots=True)
class Fence:
    """The trainer generation of this process, and a check that it is still current; used by rank 0."""

    trainer_generation: int
    is_current: Callable[[], bool]


class Checkpoints:
    """The checkpoints under `root`. Every rank must call every method, in the same order.

    `asynchronous`: `save` returns after copying the state in memory, which needs memory for one more copy of this rank's
    shards; a kill before `settle` falls back to the previous checkpoint.
    `keep_also` returns steps whose checkpoints are kept in addition to the last `keep_last`; rank 0 calls it.
    """

    def __init__(
        self,
        root: Path,
        parallel: Parallel,
        *,
        keep_last: int = 2,
        asynchronous: bool = False,
        keep_also: Callable[[], Collection[int]] = tuple,
        fence: "Fence | None" = None,
    ) -> None:
        if keep_last < 1:
            raise ConfigError(f"keep_last is {keep_last}; expected at least 1")
        self._root = root
        self._parallel = parallel
        self._keep_last = keep_last
        self._asynchronous = asynchronous
        self._keep_also = keep_also
        self._fence = fence or Fence(1, lambda: True)
        self._own = set(map(step_of, complete(root)))  # steps that existed at this start, and steps that it saved
        # The writing thread communicates with its peers, so it must not share a group with concurrently computed steps.
        self._group = dist.new_group(backend="gloo")
        self._write: _Write | None = None
        self._digester = ThreadPoolExecutor(1, "digests")
        self.saved: int | None = None  # step of the last finalised checkpoint

    def save(self, learner: Learner, accounting: Mapping[str, Any]) -> None:
        """Begin the checkpoint of `learner.steps_done`, and finish it unless asynchronous. Keeps this start's existing one.

        `accounting` must be JSON. Raises like `settle`, and DataError if another start has a checkpoint of that step.
        """
        self.settle(wait=True)  # the previous one
        step, since = learner.steps_done, time.monotonic()
        temporary, refused = self._parallel.broadcast_object(self._begin(step) if self._parallel.is_main else None)
        if refused:
            self._refuse(step, None, refused)
        if temporary is None:
            return
        problem = self._write_small_files(temporary, step, accounting)
        model, optimizer = get_state_dict(learner.lm, learner.optimizer, options=TRAINED)
        files = dcp.async_save(
            {"model": without_frozen(learner.lm, model), "optimizer": optimizer},
            checkpoint_id=temporary,
            process_group=self._group,
        )
        assert isinstance(files, Future)
        self._write = _Write(
            step, temporary, self._digester.submit(digest, files, temporary, self._parallel), problem, since
        )
        if not self._asynchronous:
            self.settle(wait=True)

    def settle(self, *, wait: bool = False) -> int | None:
        """Atomically finalise the pending checkpoint if every rank has written its part; returns its step, or None.

        `wait`: block until it is written. Raises DataError if it could not be written; earlier checkpoints stay valid. Raises
        LeaseLost if another start has become the trainer; this one then leaves no checkpoint.
        """
        write = self._write
        if write is None:
            return None
        if wait:
            write.files.exception()
        elif self._parallel.everyone.sum_scalars([float(write.files.done())])[0] < self._parallel.world_size:
            return None
        self._write = None
        failure = write.problem or write.files.exception()
        failures = [text for text in self._parallel.everyone.gather_objects(failure and str(failure)) if text]
        lost, refused = self._parallel.broadcast_object(
            self._publish(write, failures) if self._parallel.is_main else None
        )  # every rank waits until it is durable, which confirms this step's accounting
        if lost:
            raise LeaseLost(
                f"the checkpoint of step {write.step} is discarded: another start of this trainer has taken over"
            )
        if refused:
            self._refuse(write.step, write.temporary, refused)
        self._own.add(write.step)
        self.saved = write.step
        return write.step

    def _publish(self, write: _Write, failures: Sequence[str]) -> tuple[bool, str | None]:
        """On rank 0: (whether another start has taken over, other error)."""
        if not self._fence.is_current():
            shutil.rmtree(write.temporary, ignore_errors=True)
            return True, None
        if failures:
            return False, failures[0]
        target = self._target(write.step)
        try:
            publish_directory(write.temporary, target)
            self._remove_old()
        except FileNotFoundError:  # removed after the fence check
            return not self._fence.is_current(), f"{write.temporary} is gone"
        except OSError as exc:
            return False, str(exc)
        log.info("checkpoint saved path=%s seconds=%.2f", target, time.monotonic() - write.since)
        return False, None

    def _begin(self, step: int) -> tuple[Path | None, str | None]:
        """(new directory, or None if this start already has the checkpoint; error)."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            remove_pending(self._root, self._fence.trainer_generation)
            target = self._target(step)
            if not target.exists():
                return temporary_directory(target, f"{self._fence.trainer_generation}-"), None
            return None, None if step in self._own else f"{target} exists, written by another start of the trainer"
        except OSError as exc:
            return None, str(exc)

    def _write_small_files(self, temporary: Path, step: int, accounting: Mapping[str, Any]) -> str | None:
        """Write the files apart from tensors; returns the error, which `settle` reports to all ranks."""
        try:
            if self._parallel.is_main:
                start = {"world_size": self._parallel.world_size, "trainer_generation": self._fence.trainer_generation}
                state = {"step": step, **start, "accounting": accounting}
                (temporary / STATE_FILE).write_text(json.dumps(state) + "\n", encoding="utf-8")
            if self._parallel.rank % (self._parallel.world_size // self._parallel.data.size) == 0:
                torch.save(
                    random_states(self._parallel.device), random_states_file(temporary, self._parallel.data.rank)
                )
        except (OSError, RuntimeError) as exc:  # torch's writer raises RuntimeError on a full disk
            return str(exc)
        return None

    def _target(self, step: int) -> Path:
        return self._root / step_folder(step)

    def _remove_old(self) -> None:
        protected = set(self._keep_also())
        for old in complete(self._root)[: -self._keep_last]:
            if step_of(old) not in protected:
                shutil.rmtree(old)

    def _refuse(self, step: int, temporary: Path | None, reason: str) -> NoReturn:
        if self._parallel.is_main and temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)  # the partial directory may have filled the disk
        newest = latest(self._root)
        good = f"{newest} is valid" if newest else "there is no earlier one"
        raise DataError(
            f"the checkpoint of step {step} could not be written to {self._root}: {reason.strip().splitlines()[-1]}; "
            f"{good}; free disk space and start again, which continues from there"
        )


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


def load(learner: Learner, path: Path, parallel: Parallel) -> Resumed:
    """Restore the learner's state from `path`, on any number of ranks. Every rank must call it.

    Additional ranks derive their random states from rank 0's and their number.
    Raises DataError for an incomplete or damaged checkpoint, or one of other parameters than the learner trains.
    """
    refuse_damaged(path, [one for one in complete(path.parent) if step_of(one) < step_of(path)], parallel)
    try:
        state = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as exc:
        raise DataError(f"{path}: no readable {STATE_FILE}; expected a complete checkpoint") from exc
    model, optimizer = get_state_dict(learner.lm, learner.optimizer, options=TRAINED)
    tensors: dict[str, Any] = {"model": without_frozen(learner.lm, model), "optimizer": optimizer}
    _check_names(path, tensors["model"])
    load_tensors(path, tensors)
    set_state_dict(
        learner.lm,
        learner.optimizer,
        model_state_dict=tensors["model"],
        optim_state_dict=tensors["optimizer"],
        options=TRAINED,
    )
    learner.steps_done = int(state["step"])
    with _reading(path):
        restore_random_states(path, parallel)
    log.info("checkpoint loaded path=%s step=%d saved_by_ranks=%d", path, learner.steps_done, state["world_size"])
    return Resumed(learner.steps_done, state["accounting"])


def load_tensors(path: Path, state: dict[str, Any]) -> None:
    """Read the tensors named in `state` from a checkpoint into it. Raises DataError for a damaged file."""
    with _reading(path):
        dcp.load(state, checkpoint_id=path)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Map read errors to DataError: saves are atomic, but a disk, a copy or a user may truncate a file."""
    try:
        yield
    except (CheckpointException, OSError, EOFError, pickle.UnpicklingError, RuntimeError) as exc:
        reason = (str(exc).strip().splitlines() or [type(exc).__name__])[-1]
        raise DataError(
            f"{path}: one of its files is damaged or missing ({reason}); move the directory away and start again, "
            "which continues from the previous checkpoint"
        ) from exc


def without_frozen(lm: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Remove frozen parameters that `TRAINED` keeps under the names of tied ones."""
    frozen = {name for name, p in lm.named_parameters(remove_duplicate=False) if not p.requires_grad}
    return {name: value for name, value in state.items() if name not in frozen}


def stored_tensors(path: Path) -> dict[str, TensorStorageMetadata]:
    """The model's tensors in a checkpoint, by their names in a `TreeLM`."""
    with _reading(path):
        stored = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    tensors = {name.removeprefix("model."): tensor for name, tensor in stored.items() if name.startswith("model.")}
    return {name: tensor for name, tensor in tensors.items() if isinstance(tensor, TensorStorageMetadata)}


def _check_names(path: Path, model: Mapping[str, Any]) -> None:
    stored = {name: tuple(tensor.size) for name, tensor in stored_tensors(path).items()}
    expected = {name: tuple(tensor.shape) for name, tensor in model.items()}
    differing = sorted(name for name in stored.keys() | expected.keys() if stored.get(name) != expected.get(name))
    if differing:
        name = differing[0]
        raise DataError(
            f"{path}: {len(differing)} tensors differ from those that this start trains, such as {name}: "
            f"{stored.get(name, 'absent')} there, {expected.get(name, 'not trained')} here; expected the same model, "
            "lora_rank, lora_target_modules and freeze"
        )
