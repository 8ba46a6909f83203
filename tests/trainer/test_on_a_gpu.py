"""On a GPU the trainer computes what it computes on a CPU: gradients, steps, checkpoints, published weights; in every setting."""

import dataclasses
import gc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch._dynamo.utils import counters
from torch.distributed.tensor import DTensor

from shared.weights.files import WEIGHTS_FILE
from tests.trainer.accelerated import DEVICE, by_triton, device_module, on_an_accelerator
from tests.trainer.builders import (
    FLEX_HEAD_DIM,
    STALENESS,
    random_group,
    relative_difference,
    tiny_experts_model,
    tiny_model,
)
from tests.trainer.exactness import CONFIGS, one_by_one
from tests.trainer.launched import LAST_STEP, OPTIMIZER, SAVED_STEP, accumulated, full_parameters, take_steps
from trainer.checkpoints import checkpoint, folders, restore
from trainer.losses import Denominators, LossConfig
from trainer.modeling.float64_norms import exact_norms
from trainer.process.parallel import Parallel, parallel_session
from trainer.publishing.weights import write_weights
from trainer.settings.memory import MemorySettings
from trainer.settings.trained_parts import EVERYTHING, Trainable
from trainer.step.learner import Learner
from trainer.step.opening import LearnerOptions, open_learner
from trainer.step.residence import to_device, to_host
from trainer.trees.minibatch import Minibatch
from trainer.trees.packing import pack
from trainer.trees.tree import Merging, merge

pytestmark = on_an_accelerator

EXACT = 1e-6  # float64, but rotary positions are made in float32 on both devices
BY_FLEX = 5e-3  # float32
BF16 = 0.1
REPEATED = 1e-6  # the same steps again, in float64: a GPU adds in no fixed order, and Adam divides by small numbers
SETTINGS = {
    "plain": MemorySettings(),
    "checkpointed": MemorySettings(activation_checkpointing=True),
    "activations offloaded": MemorySettings(activation_checkpointing=True, activation_offload=True),
    "optimizer offloaded": MemorySettings(optimizer_offload=True),
    "everything": MemorySettings(activation_checkpointing=True, activation_offload=True, optimizer_offload=True),
}
every_setting = pytest.mark.parametrize("memory", SETTINGS.values(), ids=SETTINGS.keys())
RECORDS = random_group(21)


@pytest.fixture
def on_gpu() -> Iterator[Parallel]:
    with parallel_session(DEVICE, num_threads=1) as parallel:
        yield parallel


@pytest.fixture(scope="module")
def wide_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, with heads that FlexAttention computes."""
    directory = tmp_path_factory.mktemp("wide") / "tiny"
    tiny_model(head_dim=FLEX_HEAD_DIM).save_pretrained(directory)
    return directory


def learner_of(directory: Path, parallel: Parallel, *, dtype: str = "float64", **options: Any) -> Learner:
    return open_learner(directory, CONFIGS["grpo"], OPTIMIZER, parallel, LearnerOptions(dtype=dtype, **options))


def in_bfloat16(parallel: Parallel) -> Parallel:
    """As launched with `mixed_precision: bf16`."""
    return dataclasses.replace(parallel, settings=dataclasses.replace(parallel.settings, precision="bf16"))


def gradients_of(learner: Learner, max_tokens: int = 20) -> dict[str, Tensor]:
    """Of the trainer, by the names of the unsharded model, on the CPU in float64."""
    tree = merge(RECORDS, merging=Merging.LINEAR if learner.linear else Merging.TREE).at(STALENESS)
    rows = pack([tree], max_tokens, one_sequence_per_row=learner.linear)
    for optimizer in learner.optimizers:
        optimizer.zero_grad()
    accumulated(learner, Minibatch(rows, Denominators.count(torch.from_numpy(tree.trained_tokens_T))))
    found = {}
    for name, parameter in learner.causal_lm.named_parameters():
        assert isinstance(parameter.grad, DTensor), f"{name} has no gradient"
        found[name] = parameter.grad.full_tensor().double().cpu()
    for optimizer in learner.optimizers:
        optimizer.zero_grad()
    return found


def expected_gradients(head_dim: int = 8) -> dict[str, Tensor]:
    """By the formulas, one forward per sequence on the CPU."""
    model = tiny_model(head_dim=head_dim)
    with exact_norms(model):
        return one_by_one(model, RECORDS, CONFIGS["grpo"])[1]


def cpu_parameters(learner: Learner) -> dict[str, Tensor]:
    return {name: tensor.double().cpu() for name, tensor in full_parameters(learner).items()}


@pytest.mark.parametrize("prefix_trees", [True, False], ids=["trees", "linear"])
@every_setting
def test_the_gradient_is_that_of_one_forward_per_sequence_on_a_cpu(
    memory: MemorySettings, prefix_trees: bool, model_directory: Path, on_gpu: Parallel
) -> None:
    learner = learner_of(model_directory, on_gpu, attn_implementation="sdpa", prefix_trees=prefix_trees, memory=memory)
    assert learner.linear is not prefix_trees
    with exact_norms(learner.causal_lm):
        assert relative_difference(gradients_of(learner), expected_gradients()) < EXACT


@by_triton
@pytest.mark.parametrize("prefix_trees", [True, False], ids=["trees", "linear"])
@every_setting
def test_flex_attention_is_chosen_and_gives_that_gradient(
    memory: MemorySettings, prefix_trees: bool, wide_directory: Path, on_gpu: Parallel
) -> None:
    learner = learner_of(wide_directory, on_gpu, dtype="float32", prefix_trees=prefix_trees, memory=memory)
    assert learner.lm.way.trees is prefix_trees
    assert learner.lm.way.attention == "flex_attention" or not prefix_trees, "a sequence alone needs no mask"
    assert relative_difference(gradients_of(learner, 200), expected_gradients(FLEX_HEAD_DIM)) < BY_FLEX


@by_triton
@every_setting
def test_in_mixed_precision_trees_go_through_flex_attention_too(
    memory: MemorySettings, wide_directory: Path, on_gpu: Parallel
) -> None:
    learner = learner_of(wide_directory, in_bfloat16(on_gpu), dtype="float32", memory=memory)
    assert (learner.lm.way.attention, learner.lm.way.trees) == ("flex_attention", True)
    assert all(parameter.dtype == torch.float32 for parameter in learner.causal_lm.parameters())
    found, expected = gradients_of(learner, 200), expected_gradients(FLEX_HEAD_DIM)
    flat, exact = (torch.cat([gradient.flatten() for gradient in one.values()]) for one in (found, expected))
    assert float((flat - exact).norm() / exact.norm()) < BF16


def test_a_model_that_flex_attention_cannot_compute_is_computed_with_a_dense_mask(
    model_directory: Path, on_gpu: Parallel
) -> None:
    learner = learner_of(model_directory, on_gpu, dtype="float32")
    assert (learner.lm.way.attention, learner.lm.way.trees) == ("sdpa", True)


@by_triton
def test_rows_of_many_lengths_compile_flex_attention_a_few_times(wide_directory: Path, on_gpu: Parallel) -> None:
    """Beyond its limit of 8 PyTorch would go on without compiled code, with N × N numbers."""
    learner = learner_of(wide_directory, on_gpu, dtype="float32")
    counters.clear()
    for number in range(12):
        tree = merge([record for seed in range(6 * (number + 1)) for record in random_group(seed)])
        rows = pack([tree], 10_000)
        learner.step(rows, Denominators.count(torch.from_numpy(tree.trained_tokens_T)))
    assert counters["stats"]["unique_graphs"] <= 4, dict(counters["stats"])
    assert not counters["graph_break"], dict(counters["graph_break"])


def test_a_mixture_of_experts_has_the_gradient_of_a_cpu(tmp_path: Path, on_gpu: Parallel) -> None:
    tiny_experts_model().save_pretrained(tmp_path)
    learner = learner_of(tmp_path, on_gpu, attn_implementation="sdpa")
    model = tiny_experts_model()
    with exact_norms(model):
        _, expected = one_by_one(model, RECORDS, CONFIGS["grpo"])
    with exact_norms(learner.causal_lm):
        assert relative_difference(gradients_of(learner), expected) < EXACT


@by_triton
@pytest.mark.parametrize("attention", ["sdpa", "flex_attention"])
@pytest.mark.parametrize("memory", [SETTINGS["plain"], SETTINGS["checkpointed"]], ids=["plain", "checkpointed"])
def test_compiled_layers_have_the_same_gradient(
    memory: MemorySettings, attention: str, wide_directory: Path, on_gpu: Parallel
) -> None:
    torch.compiler.reset()
    learner = learner_of(
        wide_directory, on_gpu, dtype="float32", attn_implementation=attention, compile_layers=True, memory=memory
    )
    for budget in (200, 20, 12):
        assert relative_difference(gradients_of(learner, budget), expected_gradients(FLEX_HEAD_DIM)) < BY_FLEX


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("memory", [SETTINGS["plain"], SETTINGS["optimizer offloaded"]], ids=["plain", "offloaded"])
def test_a_resumed_run_equals_the_uninterrupted_one(
    memory: MemorySettings, asynchronous: bool, tmp_path: Path, model_directory: Path, on_gpu: Parallel
) -> None:
    learner = learner_of(model_directory, on_gpu, memory=memory)
    take_steps(learner, SAVED_STEP, 30, on_gpu)
    checkpoints = checkpoint.Checkpoints(tmp_path, on_gpu, asynchronous=asynchronous)
    device_module.manual_seed(7)
    checkpoints.save(learner, {"seen": ["a", 1]})
    drawn = torch.rand(3, device=on_gpu.device)
    take_steps(learner, LAST_STEP, 30, on_gpu)
    checkpoints.settle(wait=True)
    resumed = learner_of(model_directory, on_gpu, memory=memory)
    path = folders.latest(tmp_path)
    assert path
    assert restore.load(resumed, path, on_gpu).step == SAVED_STEP
    assert torch.equal(torch.rand(3, device=on_gpu.device), drawn)
    take_steps(resumed, LAST_STEP, 30, on_gpu)
    assert relative_difference(cpu_parameters(resumed), cpu_parameters(learner)) < REPEATED


@pytest.mark.parametrize(("first", "second"), [(DEVICE, "cpu"), ("cpu", DEVICE)], ids=["on a CPU", "on a GPU"])
def test_a_checkpoint_continues_on_the_other_kind_of_device(
    first: str, second: str, tmp_path: Path, model_directory: Path
) -> None:
    with parallel_session(first, num_threads=1) as parallel:
        learner = learner_of(model_directory, parallel, attn_implementation="sdpa")
        take_steps(learner, SAVED_STEP, 30, parallel)
        checkpoint.Checkpoints(tmp_path, parallel).save(learner, {})
        take_steps(learner, LAST_STEP, 30, parallel)
        expected = cpu_parameters(learner)
    with parallel_session(second, num_threads=1) as parallel:
        learner = learner_of(model_directory, parallel, attn_implementation="sdpa")
        path = folders.latest(tmp_path)
        assert path
        assert restore.load(learner, path, parallel).step == SAVED_STEP
        take_steps(learner, LAST_STEP, 30, parallel)
        assert (
            relative_difference(cpu_parameters(learner), expected) < 1e-3
        )  # Adam divides differences by small numbers


def states_bytes(learner: Learner) -> int:
    """Of parameters and optimizer states."""
    states = [value for one in learner.optimizers for state in one.state.values() for value in state.values()]
    tensors = [value for value in [*learner.lm.parameters(), *states] if isinstance(value, DTensor)]
    return sum(tensor.to_local().nbytes for tensor in tensors)


@pytest.mark.parametrize("trainable", [EVERYTHING, Trainable(lora_rank=4)], ids=["all", "adapters"])
def test_states_leave_the_gpu_between_turns_and_steps_go_on(
    trainable: Trainable, wide_directory: Path, on_gpu: Parallel
) -> None:
    unmoved, moved = (learner_of(wide_directory, on_gpu, trainable=trainable) for _ in range(2))
    take_steps(unmoved, LAST_STEP, 30, on_gpu)
    expected = cpu_parameters(unmoved)
    del unmoved
    for step in range(1, LAST_STEP + 1):
        held = device_module.memory_allocated()
        to_host(moved, on_gpu.device)
        assert all(parameter.device.type == "cpu" for parameter in moved.lm.parameters())
        assert held - device_module.memory_allocated() >= states_bytes(moved), "cuBLAS keeps its own memory"
        to_device(moved, on_gpu.device)
        take_steps(moved, step, 30, on_gpu)
    assert relative_difference(cpu_parameters(moved), expected) < REPEATED


@every_setting
def test_written_weights_are_those_of_the_gpu(
    memory: MemorySettings, tmp_path: Path, model_directory: Path, on_gpu: Parallel
) -> None:
    learner = learner_of(model_directory, on_gpu, memory=memory)
    take_steps(learner, 1, 30, on_gpu)
    written = write_weights(learner.causal_lm, model_directory, tmp_path / "weights", on_gpu)
    stored, expected = load_file(written.path / WEIGHTS_FILE), cpu_parameters(learner)
    assert stored
    assert all(torch.equal(tensor, expected[name]) for name, tensor in stored.items())


def with_kl(directory: Path, parallel: Parallel, *, offload: bool) -> Learner:
    memory = MemorySettings(reference_offload=offload)
    return open_learner(
        directory, LossConfig(kl_coefficient=0.1), OPTIMIZER, parallel, LearnerOptions(dtype="float64", memory=memory)
    )


def test_a_reference_model_is_on_the_gpu_for_its_turn_alone(wide_directory: Path, on_gpu: Parallel) -> None:
    """Between steps, and at the peak of a step, memory is that of a learner without one; the steps are the same."""
    between, peaks, parameters = [], [], []
    learners = [
        partial(learner_of, wide_directory, on_gpu),
        partial(with_kl, wide_directory, on_gpu, offload=True),
        partial(with_kl, wide_directory, on_gpu, offload=False),
    ]
    size = 0
    for opened in learners:
        gc.collect()
        before = device_module.memory_allocated()
        learner = opened()
        take_steps(learner, SAVED_STEP, 10_000, on_gpu)
        between.append(device_module.memory_allocated() - before)
        device_module.reset_peak_memory_stats()
        take_steps(learner, LAST_STEP, 10_000, on_gpu)
        peaks.append(device_module.max_memory_allocated() - before)
        parameters.append(cpu_parameters(learner))
        if learner.reference is not None:
            size = sum(parameter.nbytes for parameter in learner.reference.lm.parameters())
        del learner
    _, offloaded, resident = between
    assert resident - offloaded > 0.99 * size
    assert peaks[2] - peaks[1] > 0.99 * size
    print(f"bytes of the reference {size}; between steps {between}; at the peak {peaks}")
    assert peaks[1] - peaks[0] < size / 4, "log-probs, and what the allocator rounds up"
    assert relative_difference(parameters[1], parameters[2]) < REPEATED
    assert relative_difference(parameters[0], parameters[2]) > 100 * REPEATED, "the KL term counts"


def test_what_moves_is_nothing_where_everything_lives_on_the_host(model_directory: Path, on_gpu: Parallel) -> None:
    learner = learner_of(model_directory, on_gpu, memory=SETTINGS["optimizer offloaded"])
    assert learner.lives_on_host
    for move in (to_host, to_device):
        move(learner, on_gpu.device)
        assert all(parameter.device.type == "cpu" for parameter in learner.lm.parameters())
    take_steps(learner, 1, 30, on_gpu)
