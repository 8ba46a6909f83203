"""Random states in a checkpoint: torch's, NumPy's and Python's, one file per data shard."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer.process.parallel import Parallel


def random_states(device: torch.device) -> dict[str, Any]:
    """The current random states."""
    kind, keys, *rest = np.random.get_state()
    numpy = (
        kind,
        torch.from_numpy(np.asarray(keys, dtype=np.int64)),
        *rest,
    )  # only tensors and numbers
    state = {"torch": torch.get_rng_state(), "numpy": numpy, "python": random.getstate()}
    if device.type != "cpu":
        state[device.type] = torch.get_device_module(device).get_rng_state(device)
    return state


def random_states_file(folder: Path, rank: int) -> Path:
    return folder / f"rng-{rank}.pt"


def restore_random_states(folder: Path, parallel: Parallel) -> None:
    """Restore the states of the checkpoint in `folder`; additional ranks derive theirs from rank 0's and their number."""
    own = random_states_file(folder, parallel.data.rank)
    file = own if own.exists() else random_states_file(folder, 0)
    state = torch.load(file, weights_only=True)  # a manipulated file cannot run code
    torch.set_rng_state(state["torch"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])
    if parallel.device.type in state:
        torch.get_device_module(parallel.device).set_rng_state(state[parallel.device.type], parallel.device)
    if file is not own:
        _seed_from_here(parallel.data.rank)


def _seed_from_here(rank: int) -> None:
    """Seed this rank from the shared state and its rank."""
    common = int(torch.randint(2**62, ()))
    for_torch, for_numpy, for_python = np.random.SeedSequence([common, rank]).generate_state(3)
    torch.manual_seed(int(for_torch))
    np.random.seed(for_numpy)
    random.seed(int(for_python))
