"""Random states in a checkpoint: they come back as they were, and a file in their place runs nothing."""

import os
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from trainer.checkpoints.random_states import random_states, random_states_file, restore_random_states
from trainer.process.parallel import parallel_session


def _drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


def test_what_is_drawn_after_a_restore_is_what_was_drawn_after_the_save(tmp_path: Path) -> None:
    with parallel_session("cpu") as parallel:
        torch.save(random_states(parallel.device), random_states_file(tmp_path, 0))
        expected = _drawn()
        assert _drawn() != expected
        restore_random_states(tmp_path, parallel)
        assert _drawn() == expected


class Attack:
    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.victim),)


def test_a_file_that_holds_code_is_refused_and_not_run(tmp_path: Path) -> None:
    torch.save({"torch": Attack(tmp_path / "done")}, random_states_file(tmp_path, 0))
    with parallel_session("cpu") as parallel, pytest.raises(pickle.UnpicklingError, match=r"posix\.mkdir"):
        restore_random_states(tmp_path, parallel)
    assert not (tmp_path / "done").exists()
