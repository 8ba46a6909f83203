"""Sharded over processes by fully_shard on gloo, the gradient is that of one unsharded process."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor

from tests.trainer import fsdp_child
from tests.trainer.builders import relative_difference, tiny_model
from tests.trainer.exactness import TOLERANCE, merged
from trainer.losses import LossConfig
from trainer.modeling.float64_norms import exact_norms


def test_two_sharded_ranks_together_have_the_gradient_of_one_unsharded_process(tmp_path: Path) -> None:
    """Tied and untied heads, the root freed between forward and backward, activations recomputed."""
    output = tmp_path / "gradients.pt"
    command = [sys.executable, "-m", "tests.trainer.fsdp_child"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), "2", str(tmp_path / "store"), str(output)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            cwd=Path(__file__).parents[2],
        )
        for rank in range(2)
    ]
    try:
        logs = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(logs)
    assert_unsharded_gradients(torch.load(output))


def test_one_sharded_rank_has_the_gradient_of_an_unsharded_process() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        found = fsdp_child.every_case(rank=0, world_size=1)
    finally:
        torch.distributed.destroy_process_group()
    assert_unsharded_gradients(found)


def assert_unsharded_gradients(found: dict[str, dict[str, Tensor]]) -> None:
    for case, (tied, _, _) in fsdp_child.CASES.items():
        alone = tiny_model(tied=tied)
        with exact_norms(alone):
            _, expected = merged(alone, fsdp_child.step_trees(), LossConfig())
        assert relative_difference(found[case], expected) < TOLERANCE, case
