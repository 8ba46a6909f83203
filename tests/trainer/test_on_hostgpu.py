"""The tests for GPUs and the layouts, on a GPU of host memory (tests/hostgpu): what needs no Triton is shown anywhere."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests import hostgpu

pytestmark = [
    pytest.mark.skipif(not hostgpu.can_be_built(), reason=f"needs {hostgpu.COMPILER} to compile tests/hostgpu"),
    pytest.mark.slow,
    pytest.mark.timeout(1800),  # on a busy machine a compilation and a hundred forwards wait for processor time
]
ROOT = Path(__file__).parents[2]
GRADIENTS = (
    "test_the_gradient_is_that_of_one_forward_per_sequence_on_a_cpu",
    "test_a_mixture_of_experts_has_the_gradient_of_a_cpu",
    "test_a_model_that_flex_attention_cannot_compute_is_computed_with_a_dense_mask",
)
CHECKPOINTS = (
    "test_a_resumed_run_equals_the_uninterrupted_one",
    "test_a_checkpoint_continues_on_the_other_kind_of_device",
)
STATES = (
    "test_states_leave_the_gpu_between_turns_and_steps_go_on",
    "test_written_weights_are_those_of_the_gpu",
    "test_what_moves_is_nothing_where_everything_lives_on_the_host",
    "test_a_reference_model_is_on_the_gpu_for_its_turn_alone",
)


def run(*arguments: str, status: int = 0) -> str:
    """A program on the device, to its end. What it registers with PyTorch would change every other test of this process."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", *arguments],
        cwd=ROOT,
        env=os.environ | {"TANDEM_TEST_DEVICE": hostgpu.NAME, **hostgpu.ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == status, done.stdout[-8000:]
    return done.stdout


def outcomes(report: Path, *selection: str) -> dict[str, str]:
    """{test: "passed", or the reason for which it was skipped}"""
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", f"--junitxml={report}", *selection)
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        found[case.attrib["name"]] = "passed" if skipped is None else skipped.attrib["message"]
    return found


def test_it_refuses_what_cuda_refuses(tmp_path: Path) -> None:
    found = outcomes(tmp_path / "report.xml", "tests/hostgpu/test_refusals.py")
    assert len(found) >= 16
    assert set(found.values()) == {"passed"}


def test_gradients_there_are_those_of_a_cpu(tmp_path: Path) -> None:
    learner_computes(GRADIENTS, tmp_path)


def test_checkpoints_continue_there(tmp_path: Path) -> None:
    learner_computes(CHECKPOINTS, tmp_path)


def test_states_move_from_there_and_weights_are_written(tmp_path: Path) -> None:
    learner_computes(STATES, tmp_path)


def learner_computes(tests: Sequence[str], tmp_path: Path) -> None:
    chosen = f"({' or '.join(tests)}) and not linear and not offloaded-True"
    found = outcomes(tmp_path / "report.xml", "tests/trainer/test_on_a_gpu.py", "-k", chosen)
    assert set(found.values()) == {"passed"}
    assert {name.partition("[")[0] for name in found} == set(tests)


def test_a_run_and_images_are_trained_there(tmp_path: Path) -> None:
    found = outcomes(tmp_path / "report.xml", "tests/trainer/test_training_on_a_gpu.py")
    assert set(found.values()) == {"passed"}


def test_an_optimizer_and_replayed_experts_take_the_steps_of_a_cpu_there(tmp_path: Path) -> None:
    found = outcomes(tmp_path / "report.xml", "tests/trainer/test_steps_on_a_gpu.py", "-k", "muon or replayed")
    assert found == {
        "test_every_optimizer_moves_the_parameters_as_on_a_cpu[muon]": "passed",
        "test_experts_take_the_steps_of_a_cpu[replayed]": "passed",
    }


@pytest.mark.thorough
def test_losses_optimizers_adapters_and_experts_take_the_steps_of_a_cpu_there(tmp_path: Path) -> None:
    found = outcomes(tmp_path / "report.xml", "tests/trainer/test_steps_on_a_gpu.py")
    assert set(found.values()) == {"passed"}


def test_two_ranks_train_there_the_parameters_of_one_process_on_a_cpu() -> None:
    """Tokens and stages over two devices; to 1e-9, which the program itself checks. Data: with experts, and with a reference
    model below; layers by tp_size: tests/hostgpu/test_gpu_check.py."""
    layouts_agree("1,1x1x2,1x1x1x2")


@pytest.mark.thorough
def test_two_ranks_train_there_the_same_in_every_dense_layout() -> None:
    layouts_agree("1,2,1x2,1x1x2,1x1x1x2")


@pytest.mark.thorough
def test_two_ranks_hold_experts_together_there() -> None:
    """In every check the same is a row of tests/hostgpu/test_gpu_check.py."""
    layouts_agree("1,2x1x1x1x2", "--experts")


def test_experts_that_are_cut_inside_leave_the_device_between_turns() -> None:
    """Three over two processes: whole on none."""
    layouts_agree("1,2", "--experts", "--num_experts", "3", "--by_turns")


def test_an_optimizer_on_the_host_steps_layers_and_experts_that_processes_share() -> None:
    layouts_agree("1,1x2x1x1x2", "--experts", "--optimizer_offload")


def layouts_agree(layouts: str, *options: str) -> None:
    printed = run(
        *("-m", "tests.trainer.layouts", "--device", hostgpu.NAME, "--reference_device", "cpu", "--steps_only"),
        *("--layouts", layouts, *options),
    )
    assert len(re.findall(r"│ [\dx]+ +│ [1-3] +│ \d", printed)) == len(layouts.split(",")), printed


def test_a_reference_model_by_turns_changes_no_parameter() -> None:
    """Over three shards, of which some are padded: its weights are copied to the device for each step."""
    layouts_agree("1,3", "--reference")
