"""Gradients that are reduced after each row: the same parameters, and no process keeps whole gradients for a later row."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.trainer.builders import relative_difference, tiny_model
from tests.trainer.launched import OPTIMIZER, full_parameters, take_steps
from tests.trainer.layouts import MAX_TOKENS, Layout, run
from trainer.losses import LossConfig
from trainer.process.parallel import Parallel
from trainer.settings.memory import MemorySettings
from trainer.step.learner import Learner
from trainer.step.opening import LearnerOptions, open_learner

STEPS = 3


def trained(folder: Path, layout: Layout, *, reduce_each_row: bool) -> tuple[dict[str, Tensor], list[bool]]:
    """Parameters after the steps; and of each row whether this rank's gradients were there before its forward."""
    (result := folder / "result.pt").unlink(missing_ok=True)

    def work(parallel: Parallel) -> None:
        memory = MemorySettings(reduce_each_row=reduce_each_row)
        options = LearnerOptions(dtype="float64", memory=memory)
        learner: Learner = open_learner(folder / "model", LossConfig(), OPTIMIZER, parallel, options)
        present: list[bool] = []
        learner.lm.register_forward_pre_hook(
            lambda *_: present.append(any(p.grad is not None for p in learner.lm.parameters())),
            prepend=True,  # before FSDP2 gathers: the parameters are this rank's parts
        )
        take_steps(learner, STEPS, MAX_TOKENS, parallel)
        parameters = full_parameters(learner)
        if parallel.is_main:
            torch.save((parameters, present), result)

    run(layout, work)
    parameters, present = torch.load(result, weights_only=True)
    return parameters, present


@pytest.mark.parametrize("layout", [Layout(2), Layout(2, pp=2)], ids=str)
def test_gradients_reduced_after_each_row_train_the_parameters_of_one_process(layout: Layout, tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path / "model")
    expected, _ = trained(tmp_path, Layout(1), reduce_each_row=False)
    whole, between = trained(tmp_path, layout, reduce_each_row=False)
    assert relative_difference(whole, expected) < 1e-9
    assert not any(between), "whole gradients, unreduced until the last row, are not this rank's"
    reduced, between = trained(tmp_path, layout, reduce_each_row=True)
    assert relative_difference(reduced, expected) < 1e-9
    assert any(between), "a step has several rows, and later ones find what the first ones left"
