"""What `hostgpu` refuses, as CUDA does, and what it finds that a CPU hides. Run by tests/trainer/test_on_hostgpu.py."""

import ctypes
import signal
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from tests.trainer.accelerated import DEVICE, device_module, on_an_accelerator
from trainer.modeling.sampled_gradients import arrived
from trainer.process.parallel import parallel_session

pytestmark = [
    *on_an_accelerator,
    pytest.mark.skipif(
        DEVICE == "cuda", reason="these are errors of the device of host memory; CUDA does not detect races"
    ),
]
TWO_DEVICES = "Expected all tensors to be on the same device"


@pytest.fixture
def matrix() -> Tensor:
    return torch.arange(12.0).view(3, 4).to(DEVICE)


def test_a_mask_on_the_host_is_refused(matrix: Tensor) -> None:
    with pytest.raises(RuntimeError, match=TWO_DEVICES):
        torch.where(torch.ones(3, 4, dtype=torch.bool), matrix, 0.0)
    with pytest.raises(RuntimeError, match=TWO_DEVICES):
        matrix.masked_fill(torch.ones(3, 4, dtype=torch.bool), 0.0)


def test_a_tensor_of_the_host_in_arithmetic_is_refused_and_a_number_is_not(matrix: Tensor) -> None:
    with pytest.raises(RuntimeError, match=TWO_DEVICES):
        matrix + torch.ones(3, 4)
    assert (matrix + torch.tensor(1.0)).sum().item() == 78.0


def test_a_number_of_the_host_is_refused_by_what_checks_every_tensor(matrix: Tensor) -> None:
    with pytest.raises(RuntimeError, match=TWO_DEVICES):
        matrix.index_select(0, torch.tensor(0))


def test_indices_of_the_host_select_by_brackets(matrix: Tensor) -> None:
    assert matrix[torch.tensor([2])].tolist() == [[8.0, 9.0, 10.0, 11.0]]


def test_two_devices_of_its_kind_are_two(matrix: Tensor) -> None:
    with pytest.raises(RuntimeError, match=TWO_DEVICES):
        matrix + torch.ones(3, 4, device=f"{DEVICE}:1")


def test_numpy_is_refused(matrix: Tensor) -> None:
    with pytest.raises(TypeError, match="can't convert"):
        matrix.numpy()


def test_an_operator_for_cpus_is_refused() -> None:
    query = torch.ones(1, 1, 4, 8, device=DEVICE)
    with pytest.raises(NotImplementedError, match="Could not run"):
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, query, query)


def test_products_of_integers_are_refused(matrix: Tensor) -> None:
    with pytest.raises(RuntimeError, match="not implemented"):
        matrix.long() @ matrix.long().T


def test_new_memory_is_not_zero() -> None:
    assert torch.empty(5, device=DEVICE).isnan().all()


def test_memory_that_was_freed_is_an_error(matrix: Tensor) -> None:
    """As that of a parameter which FSDP2 has gathered and given back."""
    matrix.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="its memory was freed"):
        matrix + 1


def test_a_convolution_is_of_one_device_and_has_the_gradients_of_a_cpu() -> None:
    pixels, kernel = torch.arange(32.0).view(1, 2, 4, 4), torch.arange(24.0).view(3, 2, 2, 2)
    with pytest.raises(RuntimeError, match=TWO_DEVICES):
        torch.nn.functional.conv2d(pixels.to(DEVICE), kernel)
    gradients = []
    for device in ("cpu", DEVICE):
        inputs = [tensor.to(device, copy=True).requires_grad_() for tensor in (pixels, kernel)]
        torch.nn.functional.conv2d(inputs[0], inputs[1]).square().sum().backward()
        gradients.append([tensor.grad.cpu() for tensor in inputs if tensor.grad is not None])
    assert len(gradients[1]) == 2
    assert all(torch.equal(there, here) for there, here in zip(*gradients, strict=True))


def test_its_memory_is_closed_to_code_for_the_host() -> None:
    code = (
        "import ctypes, torch; from tests.trainer import accelerated; "
        f"ctypes.string_at(torch.ones(4, device={DEVICE!r}).data_ptr(), 4)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGSEGV
    assert ctypes.string_at(torch.ones(4).data_ptr(), 4)


def test_a_stream_without_a_wait_is_an_error(matrix: Tensor) -> None:
    side = device_module.Stream()
    with device_module.stream(side), pytest.raises(RuntimeError, match="reads memory that stream 0 has written"):
        matrix + 1
    side.wait_stream(device_module.current_stream())
    with device_module.stream(side):
        more = matrix + 1
    with pytest.raises(RuntimeError, match="waits neither for it nor for an event"):
        more * 2
    event = side.record_event()
    device_module.current_stream().wait_event(event)
    assert (more * 2)[0, 0].item() == 2.0


def test_what_another_stream_still_reads_is_not_overwritten(matrix: Tensor) -> None:
    side = device_module.Stream()
    side.wait_stream(device_module.current_stream())
    with device_module.stream(side):
        matrix.sum()
    with pytest.raises(RuntimeError, match="writes memory that stream"):
        matrix.zero_()


def test_a_copy_to_the_host_has_no_values_before_it_is_waited_for(matrix: Tensor) -> None:
    copied = matrix.to("cpu", non_blocking=True)
    assert copied.isnan().all()
    torch.accelerator.synchronize()
    assert torch.equal(copied, torch.arange(12.0).view(3, 4))


def test_a_sample_of_a_gradient_waits_for_its_copy_to_the_host(matrix: Tensor) -> None:
    """As FSDP2 of torch before 2.13 gives it to hooks: a shard on the host, of parameters that a device computes with."""
    with parallel_session(DEVICE, num_threads=1) as parallel:
        gradient = DTensor.from_local(matrix, parallel.mesh["shard"], [Shard(0)])
        copied = DTensor.__new__(DTensor, matrix.to("cpu", non_blocking=True), gradient._spec, requires_grad=False)
        assert copied.to_local().isnan().all()
        assert torch.equal(arrived(copied), torch.arange(12.0).view(3, 4))


def test_it_has_random_numbers_of_its_own() -> None:
    torch.random.default_generator.manual_seed(3)
    before = torch.get_rng_state()
    state = device_module.get_rng_state()
    drawn = torch.rand(4, device=DEVICE)
    assert torch.equal(torch.get_rng_state(), before)
    device_module.set_rng_state(state)
    assert torch.equal(torch.rand(4, device=DEVICE), drawn)
