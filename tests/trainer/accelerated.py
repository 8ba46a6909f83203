"""The device of the tests marked `gpu`: CUDA, or the `hostgpu` of tests/hostgpu where TANDEM_TEST_DEVICE names it."""

import os
from typing import Any

import pytest
import torch

from tests import hostgpu

DEVICE = os.environ.get("TANDEM_TEST_DEVICE", "cuda")
if DEVICE == hostgpu.NAME:
    hostgpu.install()
device_module: Any = torch.get_device_module(DEVICE)  # torch.cuda, or what stands in for it
on_an_accelerator = [
    pytest.mark.gpu,
    pytest.mark.skipif(not device_module.is_available(), reason="needs a CUDA device"),
]
by_triton = pytest.mark.skipif(DEVICE != "cuda", reason="Triton compiles for CUDA")
# how far a GPU, which adds in no fixed order, may be from a CPU in float64; hostgpu has the CPU's own numbers
GRADIENTS_APART = 1e-6 if DEVICE == "cuda" else 1e-9
STEPS_APART = 1e-3 if DEVICE == "cuda" else 1e-9  # Adam divides differences by small numbers
