"""Checkpoints of a run: what is trained of the model, optimizer, step, random states, and the caller's accounting.

    ROOT/step-000120/   complete, by its name     ROOT/step-000130.tmp-3-k3j/   the third start is writing it, or left it so
        __0_0.distcp …  sharded tensors (torch.distributed.checkpoint): any number of ranks may load them
        rng-0.pt …      random states, one file per part of the data: ranks that share rows have them in common
        state.json      {"step": 120, "world_size": 2, "trainer_generation": 3, "accounting": {...}}

    save ─▶ copy in memory ─▶ files, by a thread, while the next steps are computed ─▶ settle: on disk everywhere? then the name

All or nothing: a kill at any byte, or a full disk, leaves the older checkpoints as they were. A resume continues bit by bit on
the same number of ranks.

Frozen parameters (those below adapters, say) are not in a checkpoint: they come from the directory that the run started
from, which must stay.

One trainer at a time, also on disk. A start takes the folder over (`take_over`) once it is the run's trainer: what an earlier one
was writing loses its name, so it can be given no other. One that stood still, and was replaced meanwhile, asks whether it is
still the trainer when all is written, and then renames; between the two the new start takes the directory away.
"""

import json
import logging
import pickle
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
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
from trainer.checkpoints.random_states import random_states, random_states_file, restore_random_states
from trainer.learner import Learner
from trainer.parallel import Parallel

log = logging.getLogger(__name__)

PENDING = re.compile(rf"{STEP_FOLDER.pattern}{re.escape(TEMPORARY)}(?P<start>\d+)-.*")
STATE_FILE = "state.json"
# The optimizer's state by parameter name: its groups differ where parameters are cut over other meshes. Not strict, since frozen
# parameters are missing; `load` compares the names itself.
TRAINED = StateDictOptions(flatten_optimizer_state_dict=True, ignore_frozen_params=True, strict=False)


@dataclass(frozen=True, slots=True)
class Resumed:
    """What `load` returns besides the tensors."""

    step: int
    accounting: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Write:
    """A checkpoint on its way to the disk."""

    step: int
    temporary: Path
    files: Future[Any]
    problem: str | None  # what this rank could not write itself
    since: float


@dataclass(frozen=True, slots=True)
class Fence:
    """Which start of the run's trainer this is, by its number, and whether it still is the trainer; rank 0 asks."""

    trainer_generation: int
    is_current: Callable[[], bool]


class Checkpoints:
    """The checkpoints under `root`. Every rank must call every method, in the same order.

    `asynchronous`: `save` returns once the state is copied in memory, which needs room for one more copy of this rank's
    shards; until `settle` finds it written, a kill falls back to the checkpoint before.
    `keep_also` returns further steps, besides the last `keep_last`, whose checkpoints are kept; rank 0 calls it.
    `fence`: which start of the trainer this is, and whether it still is the trainer.
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
        self._own = set(map(step_of, complete(root)))  # what this start began with, and what it has saved
        # The thread that writes speaks to its peers too, so it must not share a group with the steps computed meanwhile.
        self._group = dist.new_group(backend="gloo")
        self._write: _Write | None = None
        self.saved: int | None = None  # the step of the last one that has its name

    def save(self, learner: Learner, accounting: Mapping[str, Any]) -> None:
        """Begin the checkpoint of `learner.steps_done`, and end it unless asynchronous. An own one that is there stays as it is.

        `accounting` must be JSON. Raises as `settle` does, and DataError where a checkpoint of that step is another start's.
        """
        self.settle(wait=True)  # the one before
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
        self._write = _Write(step, temporary, files, problem, since)
        if not self._asynchronous:
            self.settle(wait=True)

    def settle(self, *, wait: bool = False) -> int | None:
        """Give the checkpoint under way its name if every rank has written its part; its step, None if there is nothing new.

        `wait`: until it is written. Raises DataError where it could not be; the checkpoints before are as good as they were.
        LeaseLost where another start has become the trainer meanwhile: then this one leaves no checkpoint.
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
        )  # every rank waits until it is durable: only then is this step's data accounted for
        if lost:
            raise LeaseLost(
                f"the checkpoint of step {write.step} stays unnamed: another start of this trainer has taken over"
            )
        if refused:
            self._refuse(write.step, write.temporary, refused)
        self._own.add(write.step)
        self.saved = write.step
        return write.step

    def _publish(self, write: _Write, failures: Sequence[str]) -> tuple[bool, str | None]:
        """On rank 0: (whether another start has taken over; what else went wrong)."""
        if not self._fence.is_current():
            shutil.rmtree(write.temporary, ignore_errors=True)
            return True, None
        if failures:
            return False, failures[0]
        target = self._target(write.step)
        try:
            publish_directory(write.temporary, target)
            self._remove_old()
        except FileNotFoundError:  # taken away after the question
            return not self._fence.is_current(), f"{write.temporary} is gone"
        except OSError as exc:
            return False, str(exc)
        log.info("checkpoint saved path=%s seconds=%.2f", target, time.monotonic() - write.since)
        return False, None

    def _begin(self, step: int) -> tuple[Path | None, str | None]:
        """(a new directory, or None where an own checkpoint is there already; why there can be none)."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            remove_pending(self._root, self._fence.trainer_generation)
            target = self._target(step)
            if not target.exists():
                return temporary_directory(target, f"{self._fence.trainer_generation}-"), None
            return None, None if step in self._own else f"{target} is there already, of another start of the trainer"
        except OSError as exc:
            return None, str(exc)

    def _write_small_files(self, temporary: Path, step: int, accounting: Mapping[str, Any]) -> str | None:
        """Returns what went wrong: all ranks learn of it together, in `settle`."""
        try:
            if self._parallel.is_main:
                start = {"world_size": self._parallel.world_size, "trainer_generation": self._fence.trainer_generation}
                state = {"step": step, **start, "accounting": accounting}
                (temporary / STATE_FILE).write_text(json.dumps(state) + "\n", encoding="utf-8")
            if self._parallel.rank % (self._parallel.world_size // self._parallel.data.size) == 0:
                torch.save(
                    random_states(self._parallel.device), random_states_file(temporary, self._parallel.data.rank)
                )
        except (OSError, RuntimeError) as exc:  # torch's own writer says RuntimeError where the disk is full
            return str(exc)
        return None

    def _target(self, step: int) -> Path:
        return self._root / step_folder(step)

    def _remove_old(self) -> None:
        kept = set(self._keep_also())
        for old in complete(self._root)[: -self._keep_last]:
            if step_of(old) not in kept:
                shutil.rmtree(old)

    def _refuse(self, step: int, temporary: Path | None, reason: str) -> NoReturn:
        if self._parallel.is_main and temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)  # what is there of it may be what filled the disk
        newest = latest(self._root)
        good = f"{newest} is good" if newest else "there is none before it"
        raise DataError(
            f"the checkpoint of step {step} could not be written to {self._root}: {reason.strip().splitlines()[-1]}; "
            f"{good}; make room and start again, which continues from there"
        )


def take_over(root: Path, step: int, trainer_generation: int) -> None:
    """A start that has become the trainer, and begins from `step`, takes the folder: what others were writing gets no name.

    Before it undoes anything. Raises DataError where a checkpoint has come since this start looked for the newest one.
    """
    remove_pending(root, trainer_generation)
    newest = latest(root)
    if newest is not None and step_of(newest) != step:
        raise DataError(
            f"{newest} was finished by the trainer before this one, after this one had begun from step {step}; nothing was "
            "undone: start again, which continues from there"
        )


def remove_pending(root: Path, trainer_generation: int) -> None:
    """What this start and those before it left unfinished; not what a later one is writing."""
    pending = ((path, PENDING.fullmatch(path.name)) for path in root.glob("step-*"))
    discard(path for path, found in pending if found and int(found["start"]) <= trainer_generation)


def complete(root: Path) -> list[Path]:
    """Complete checkpoints, oldest first; unfinished ones have another name."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if STEP_FOLDER.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=step_of)


def step_of(path: Path) -> int:
    """The step of a checkpoint, by its name."""
    return int(path.name.removeprefix("step-"))


def latest(root: Path) -> Path | None:
    """The newest complete checkpoint, None when there is none."""
    found = complete(root)
    return found[-1] if found else None


def load(learner: Learner, path: Path, parallel: Parallel) -> Resumed:
    """Put the learner where it was when `path` was saved, on any number of ranks. Every rank must call it.

    On more ranks the random states of those beyond the saved ones follow from rank 0's and their number.
    Raises DataError for a directory that is not a complete checkpoint or is damaged, or of other parameters than the learner
    trains.
    """
    try:
        state = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as exc:
        raise DataError(f"{path}: no readable {STATE_FILE}; expected a complete checkpoint") from exc
    model, optimizer = get_state_dict(learner.lm, learner.optimizer, options=TRAINED)
    wanted: dict[str, Any] = {"model": without_frozen(learner.lm, model), "optimizer": optimizer}
    _check_names(path, wanted["model"])
    load_tensors(path, wanted)
    set_state_dict(
        learner.lm,
        learner.optimizer,
        model_state_dict=wanted["model"],
        optim_state_dict=wanted["optimizer"],
        options=TRAINED,
    )
    learner.steps_done = int(state["step"])
    with _reading(path):
        restore_random_states(path, parallel)
    log.info("checkpoint loaded path=%s step=%d saved_by_ranks=%d", path, learner.steps_done, state["world_size"])
    return Resumed(learner.steps_done, state["accounting"])


def load_tensors(path: Path, wanted: dict[str, Any]) -> None:
    """Read what `wanted` names from a checkpoint into it. Raises DataError for a damaged file."""
    with _reading(path):
        dcp.load(wanted, checkpoint_id=path)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """A save leaves whole files or none; a disk, a copy or a person may cut one all the same."""
    try:
        yield
    except (CheckpointException, OSError, EOFError, pickle.UnpicklingError, RuntimeError) as exc:
        reason = (str(exc).strip().splitlines() or [type(exc).__name__])[-1]
        raise DataError(
            f"{path}: a file of it is damaged or missing ({reason}); move the directory away and start again, which continues "
            "from the checkpoint before it"
        ) from exc


def without_frozen(lm: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """What `TRAINED` leaves of frozen parameters: their other names, where they are tied."""
    frozen = {name for name, p in lm.named_parameters(remove_duplicate=False) if not p.requires_grad}
    return {name: value for name, value in state.items() if name not in frozen}


def stored_tensors(path: Path) -> dict[str, TensorStorageMetadata]:
    """The model's tensors of a checkpoint, by the names that a `TreeLM` gives them."""
    with _reading(path):
        stored = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    tensors = {name.removeprefix("model."): found for name, found in stored.items() if name.startswith("model.")}
    return {name: found for name, found in tensors.items() if isinstance(found, TensorStorageMetadata)}


def _check_names(path: Path, model: Mapping[str, Any]) -> None:
    stored = {name: tuple(found.size) for name, found in stored_tensors(path).items()}
    wanted = {name: tuple(tensor.shape) for name, tensor in model.items()}
    if differing := sorted(name for name in stored.keys() | wanted.keys() if stored.get(name) != wanted.get(name)):
        name = differing[0]
        raise DataError(
            f"{path}: {len(differing)} tensors are not those that this start trains, such as {name}: "
            f"{stored.get(name, 'absent')} there, {wanted.get(name, 'not trained')} here; expected the same model, "
            "lora_rank, lora_target_modules and freeze"
        )
