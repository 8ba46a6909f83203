"""On a GPU every loss has the gradient of its formula, and every optimizer and kind of base takes the steps of a CPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from tests.trainer import exactness_table
from tests.trainer.accelerated import DEVICE, GRADIENTS_APART, STEPS_APART, on_an_accelerator
from tests.trainer.builders import relative_difference, tiny_experts_model
from tests.trainer.launched import (
    EXAMPLE,
    LAST_STEP,
    OPTIMS,
    SAVED_STEP,
    exact_learner,
    full_parameters,
    optim_learner,
    take_steps,
)
from tests.trainer.loss_cases import LOSSES
from tests.trainer.test_not_finite import step as step_with
from trainer.losses import LossConfig
from trainer.process.parallel import Parallel, parallel_session
from trainer.quantize import QuantizeConfig, quantize
from trainer.settings.optimizer import Optim
from trainer.settings.trained_parts import EVERYTHING, Trainable

pytestmark = on_an_accelerator

# in float32, as a share of the way: muon's products are bfloat16
MOVED_APART = {"adamw": 0.02, "adamw_8bit": 0.02, "adafactor": 0.02, "muon": 0.2}
KINDS_OF_ADAPTER = {
    "lora": Trainable(lora_rank=4, lora_alpha=8.0),
    "dora": Trainable(lora_rank=4, lora_alpha=8.0, use_dora=True),
    "over nf4": Trainable(lora_rank=4, lora_alpha=8.0, base_quantization="nf4"),
}


def on_both(work: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What `work(parallel)` returns on the device and on a CPU, on the host."""
    found = []
    for device in (DEVICE, "cpu"):
        with parallel_session(device, num_threads=1) as parallel:
            found.append({name: tensor.cpu() for name, tensor in work(parallel).items()})
    return found[0], found[1]


def test_every_loss_has_the_gradient_of_its_formula() -> None:
    cases = {name: LOSSES[name] for name in exactness_table.QUICK}
    with parallel_session(DEVICE, num_threads=1) as parallel:
        found = exactness_table.found(cases, parallel)
    assert {name for steps in found.values() for name in steps} == set(cases)
    table = exactness_table.differences(found, exactness_table.expected(cases))
    assert max(max(row.values()) for row in table.values()) < GRADIENTS_APART, table


@pytest.mark.parametrize("optim", OPTIMS)
def test_every_optimizer_moves_the_parameters_as_on_a_cpu(optim: Optim) -> None:
    if optim == "adamw_8bit":
        pytest.importorskip("bitsandbytes")

    def moved(parallel: Parallel) -> dict[str, Tensor]:
        learner = optim_learner(optim, EXAMPLE, parallel)
        before = full_parameters(learner)
        take_steps(learner, 2, 30, parallel)
        return {name: after - before[name] for name, after in full_parameters(learner).items()}

    there, here = (torch.cat([tensor.flatten() for tensor in one.values()]) for one in on_both(moved))
    assert float((there - here).norm() / here.norm()) < MOVED_APART[optim]


@pytest.mark.parametrize("trainable", KINDS_OF_ADAPTER.values(), ids=KINDS_OF_ADAPTER.keys())
def test_adapters_take_the_steps_of_a_cpu(trainable: Trainable, tmp_path: Path) -> None:
    folder = EXAMPLE
    if trainable is KINDS_OF_ADAPTER["over nf4"]:
        pytest.importorskip("bitsandbytes")
        folder = tmp_path / "quantized"
        quantize(QuantizeConfig(model_name_or_path=EXAMPLE, output_dir=folder), Console(quiet=True))

    def trained(parallel: Parallel) -> dict[str, Tensor]:
        learner = exact_learner(folder, parallel, trainable=trainable)
        take_steps(learner, SAVED_STEP, 30, parallel)
        return {name: tensor for name, tensor in full_parameters(learner).items() if ".lora_" in name}

    there, here = on_both(trained)
    assert len(there) > 10
    assert relative_difference(there, here) < STEPS_APART


@pytest.mark.parametrize("replayed", [False, True], ids=["chosen", "replayed"])
def test_experts_take_the_steps_of_a_cpu(replayed: bool, tmp_path: Path) -> None:
    tiny_experts_model().save_pretrained(tmp_path)

    def trained(parallel: Parallel) -> dict[str, Tensor]:
        learner = exact_learner(tmp_path, parallel, LossConfig(router_aux_loss_coef=0.1), EVERYTHING)
        take_steps(learner, LAST_STEP, 30, parallel, every_token=True, replayed=replayed)
        return full_parameters(learner)

    assert relative_difference(*on_both(trained)) < STEPS_APART


def test_a_step_that_is_not_finite_is_skipped_and_names_its_token(model_directory: Path) -> None:
    with parallel_session(DEVICE, num_threads=1) as parallel:
        learner = exact_learner(model_directory, parallel)
        before = full_parameters(learner)
        assert "advantage nan" in str(step_with(learner, parallel, "advantage_E", float("nan")))
        assert all(torch.equal(tensor, before[name]) for name, tensor in full_parameters(learner).items())
