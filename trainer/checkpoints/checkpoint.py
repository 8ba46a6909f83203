"""Checkpoints of a run: trained parameters, optimizer, step, random states, and the caller's accounting.

    ROOT/step-000120/   complete, by its name     ROOT/step-000130.tmp-3-k3j/   being written, or left behind, by the third start
        __0_0.distcp …  sharded tensors (torch.distributed.checkpoint): any number of ranks may load them
        rng-0.pt …      random states, one file per data shard: ranks with the same rows share them
        state.json      {"step": 120, "optim": "adamw", "world_size": 2, "trainer_generation": 3, "accounting": {...}}
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
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

from shared.errors import ConfigError, DataError, LeaseLost
from shared.files.output_names import step_folder
from trainer.checkpoints.atomic_directories import publish_directory, temporary_directory
from trainer.checkpoints.digests import digest
from trainer.checkpoints.eight_bit_states import named_by_rank
from trainer.checkpoints.folders import complete, latest, remove_pending, step_of
from trainer.checkpoints.random_states import random_states, random_states_file
from trainer.checkpoints.restore import STATE_FILE, TRAINED, without_frozen
from trainer.process.parallel import Parallel
from trainer.step.learner import Learner

log = logging.getLogger(__name__)


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
        problem = self._write_small_files(temporary, learner, accounting)
        model, optimizer = get_state_dict(learner.lm, learner.optimizers, options=TRAINED)
        files = dcp.async_save(
            {
                "model": without_frozen(learner.lm, model),
                "optimizer": named_by_rank(optimizer, self._parallel.rank),
            },
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

    def _write_small_files(self, temporary: Path, learner: Learner, accounting: Mapping[str, Any]) -> str | None:
        """Write the files apart from tensors; returns the error, which `settle` reports to all ranks."""
        try:
            if self._parallel.is_main:
                start = {"world_size": self._parallel.world_size, "trainer_generation": self._fence.trainer_generation}
                kind = {"step": learner.steps_done, "optim": learner.config.optim}
                state = {**kind, **start, "accounting": accounting}
                (temporary / STATE_FILE).write_text(json.dumps(state) + "\n", encoding="utf-8")
            if self._parallel.is_first_of_its_rows:
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
