"""Reads a checkpoint into a learner, or the tensors of one by their names."""

import json
import logging
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from shared.errors import DataError
from trainer.checkpoints.digests import refuse_damaged
from trainer.checkpoints.eight_bit_states import named_by_rank
from trainer.checkpoints.folders import complete, step_of
from trainer.checkpoints.random_states import restore_random_states
from trainer.process.parallel import Parallel
from trainer.step.learner import Learner

log = logging.getLogger(__name__)

STATE_FILE = "state.json"
# Optimizer state by parameter name, since parameter groups depend on the mesh. Not strict, since frozen parameters are
# missing; `load` compares the names itself.
TRAINED = StateDictOptions(flatten_optimizer_state_dict=True, ignore_frozen_params=True, strict=False)


@dataclass(frozen=True, slots=True)
class Resumed:
    """The result of `load`, apart from the tensors."""

    step: int
    accounting: dict[str, Any]


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
    model, optimizer = get_state_dict(learner.lm, learner.optimizers, options=TRAINED)
    tensors: dict[str, Any] = {
        "model": without_frozen(learner.lm, model),
        "optimizer": named_by_rank(optimizer, parallel.rank),
    }
    _check_names(path, tensors["model"], parallel)
    _check_optimizer(path, state, learner.config.optim, parallel.world_size)
    load_tensors(path, tensors)
    if learner.optimizers:  # none on a stage without trained parameters
        set_state_dict(
            learner.lm,
            learner.optimizers,
            model_state_dict=tensors["model"],
            optim_state_dict=optimizer,
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


def _check_optimizer(path: Path, state: Mapping[str, Any], optim: str, world_size: int) -> None:
    saved = state.get("optim", "adamw")  # checkpoints of before 2026-11 name none
    if saved != optim:
        raise DataError(f"{path} has the states of optim {saved}; this start has {optim}, expected the same")
    if optim == "adamw_8bit" and state["world_size"] != world_size:
        raise DataError(
            f"{path} has 8-bit states of {state['world_size']} processes, whose blocks end with their shards; this start has "
            f"{world_size}, expected as many"
        )


def _check_names(path: Path, model: Mapping[str, Any], parallel: Parallel) -> None:
    stored = {name: tuple(tensor.size) for name, tensor in stored_tensors(path).items()}
    own = {name: tuple(tensor.shape) for name, tensor in model.items()}
    stages = [own] if parallel.pipeline is None else parallel.pipeline.peers.gather_objects(own)
    expected = {name: shape for of_stage in stages for name, shape in of_stage.items()}
    differing = sorted(name for name in stored.keys() | expected.keys() if stored.get(name) != expected.get(name))
    if differing:
        name = differing[0]
        raise DataError(
            f"{path}: {len(differing)} tensors differ from those that this start trains, such as {name}: "
            f"{stored.get(name, 'absent')} there, {expected.get(name, 'not trained')} here; expected the same model, "
            "lora_rank, use_dora, lora_target_modules and freeze"
        )
