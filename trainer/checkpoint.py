"""Checkpoints of a run: model, optimizer, step, random states of every rank, and the caller's accounting; all or nothing.

    ROOT/step-000120/   complete, by its name     ROOT/step-000130.tmp-k3j/   a write in progress, or what a kill left of one
        __0_0.distcp …  sharded tensors (torch.distributed.checkpoint): any number of ranks may load them
        rng-0.pt …      random states, one file per rank
        state.json      {"step": 120, "world_size": 2, "accounting": {...}}

A kill at any byte leaves the older checkpoints as they were. A resume continues bit by bit on the same number of ranks.
"""

import json
import logging
import random
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from shared.errors import ConfigError, DataError
from trainer.atomic import publish_directory, remove_leftovers, temporary_directory
from trainer.learner import Learner
from trainer.parallel import Parallel

log = logging.getLogger(__name__)

COMPLETE = re.compile(r"step-(\d{6,})")
STATE_FILE = "state.json"


@dataclass(frozen=True, slots=True)
class Resumed:
    """What `load` found beside the tensors."""

    step: int
    accounting: dict[str, Any]


def save(
    learner: Learner, root: Path, accounting: Mapping[str, Any], parallel: Parallel, *, keep_last: int = 2
) -> Path:
    """Write the checkpoint of `learner.steps_done` and remove all but the last `keep_last`. Every rank must call it.

    `accounting` must be JSON. A step that is saved already is left as it is.
    """
    if keep_last < 1:
        raise ConfigError(f"keep_last is {keep_last}; expected at least 1")
    started = time.monotonic()
    target = root / f"step-{learner.steps_done:06d}"
    beside = parallel.broadcast_object(_begin(root, target) if parallel.is_main else None)
    if beside is None:
        return target
    model, optimizer = get_state_dict(learner.lm, learner.optimizer)
    dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=beside)
    torch.save(_rng_state(parallel.device), beside / f"rng-{parallel.rank}.pt")
    parallel.barrier()  # every rank's files are written before the name says so
    if parallel.is_main:
        state = {"step": learner.steps_done, "world_size": parallel.world_size, "accounting": accounting}
        (beside / STATE_FILE).write_text(json.dumps(state) + "\n", encoding="utf-8")
        publish_directory(beside, target)
        for old in complete(root)[:-keep_last]:
            shutil.rmtree(old)
        log.info("checkpoint saved path=%s seconds=%.2f", target, time.monotonic() - started)
    parallel.barrier()  # nobody goes on, and nobody answers for the data of this step, before it is durable
    return target


def _begin(root: Path, target: Path) -> Path | None:
    root.mkdir(parents=True, exist_ok=True)
    remove_leftovers(root, "step-*")
    return None if target.exists() else temporary_directory(target)


def complete(root: Path) -> list[Path]:
    """Complete checkpoints, oldest first; unfinished ones have another name."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if COMPLETE.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def latest(root: Path) -> Path | None:
    """The newest complete checkpoint, None when there is none."""
    found = complete(root)
    return found[-1] if found else None


def load(learner: Learner, path: Path, parallel: Parallel) -> Resumed:
    """Put the learner where it was when `path` was saved, on any number of ranks. Every rank must call it.

    On another number of ranks the random states of the ranks beyond the saved ones start from rank 0's and their number.
    Raises DataError for a directory that is not a complete checkpoint.
    """
    try:
        state = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as exc:
        raise DataError(f"{path}: no readable {STATE_FILE}; expected a complete checkpoint") from exc
    model, optimizer = get_state_dict(learner.lm, learner.optimizer)
    wanted: dict[str, Any] = {"model": model, "optimizer": optimizer}
    dcp.load(wanted, checkpoint_id=path)
    set_state_dict(
        learner.lm, learner.optimizer, model_state_dict=wanted["model"], optim_state_dict=wanted["optimizer"]
    )
    learner.steps_done = int(state["step"])
    _restore_rng(path, parallel)
    log.info("checkpoint loaded path=%s step=%d saved_by_ranks=%d", path, learner.steps_done, state["world_size"])
    return Resumed(learner.steps_done, state["accounting"])


def _rng_state(device: torch.device) -> dict[str, Any]:
    state = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _restore_rng(path: Path, parallel: Parallel) -> None:
    own = path / f"rng-{parallel.rank}.pt"
    file = own if own.exists() else path / "rng-0.pt"
    state = torch.load(file, weights_only=False)  # written by us: tensors, a numpy tuple and Python's tuple
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
    if "cuda" in state and parallel.device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], parallel.device)
    if file is not own:
        torch.manual_seed(torch.initial_seed() + parallel.rank)
