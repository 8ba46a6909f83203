"""A GPU of host memory: a PyTorch device `hostgpu` on which the trainer runs as on CUDA, on a machine without one.

Its numbers are the CPU's, so that results can be compared to 1e-9. It refuses what CUDA refuses:

    tensors of two devices in one operation                        CUDA's message, by CUDA's rules (rules.py)
    operators that have a kernel for CPUs only                     by PyTorch's own list of kernels
    `.numpy()` of its tensors                                      PyTorch itself
    its memory read or written by code for the host                a segmentation fault: its pages are closed
    a value that nobody has written                                NaN: new memory is filled with 0xFF
    work of two streams on one memory without an event between     an error that names both
    a copy to pinned memory that is read before it is waited for   NaN
    random numbers of the CPU's generator                          it has its own

Each process may use several devices of this kind, as ranks of one machine do. Its process group is gloo, over its memory.
Not modelled: the time when memory is given to another tensor (`record_stream`), collectives that overlap with computation, copies
from pinned memory that is changed before they are done, the order of a write that gives its output a new size, Triton,
FlexAttention, cuBLAS's rounding.

`install()` compiles the extension (20 s of processor time, once for a version of torch and of these sources) and registers it.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sysconfig
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from tests.hostgpu.rules import operator_rules

NAME = "hostgpu"
BACKEND = "hostccl"
ENVIRONMENT = {"TORCHDYNAMO_DISABLE": "1"}  # bitsandbytes compiles what it has no kernel for: 30 s a process
COMPILER = os.environ.get("CXX", "g++")
SOURCES = ("device.cpp", "operations.h", "memory.h")


def can_be_built() -> bool:
    return shutil.which(COMPILER) is not None


@cache
def install() -> Any:
    """Build, load and register the device; the extension's module. Once a process, before any of its tensors is made."""
    extension = _loaded(_built())
    extension.set_rules(*operator_rules())
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _device_module(extension))
    torch.utils.generate_methods_for_privateuse1_backend()
    dist.Backend.register_backend(BACKEND, lambda *arguments: _group(extension, *arguments), devices=[NAME])
    return extension


def _built() -> Path:
    here = Path(__file__).parent
    texts = [(here / name).read_bytes() for name in SOURCES]
    digest = hashlib.sha256(b"".join([*texts, torch.__version__.encode(), sysconfig.get_python_version().encode()]))
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tandem_hostgpu"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"{digest.hexdigest()[:16]}.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes that begin together compile once
        if not library.exists():
            _compile(here / SOURCES[0], library.with_suffix(".part"))
            library.with_suffix(".part").rename(library)
    return library


def _compile(source: Path, target: Path) -> None:
    torch_folder = Path(torch.__file__).parent
    include = torch_folder / "include"
    folders = [include, include / "torch/csrc/api/include", Path(sysconfig.get_paths()["include"])]
    subprocess.run(
        [COMPILER, "-O1", "-w", "-shared", "-fPIC", "-std=c++20", "-DTORCH_EXTENSION_NAME=hostgpu_extension"]
        + [f"-I{folder}" for folder in folders]
        + [str(source), "-o", str(target), f"-L{torch_folder / 'lib'}"]
        + ["-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10", f"-Wl,-rpath,{torch_folder / 'lib'}"],
        check=True,
    )


def _loaded(library: Path) -> Any:
    spec = importlib.util.spec_from_file_location("hostgpu_extension", library)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _group(extension: Any, store: Any, rank: int, size: int, timeout: Any) -> Any:
    gloo = dist.ProcessGroupGloo(dist.PrefixStore(BACKEND, store), rank, size, timeout)
    return extension.group(rank, size, gloo)


def _device_module(extension: Any) -> ModuleType:
    """`torch.hostgpu`: what PyTorch and FSDP2 call of `torch.cuda`."""

    def index(device: Any = None) -> int:
        if device is None:
            return int(extension.current_device())
        if isinstance(device, int):
            return device
        number = torch.device(device).index
        return int(extension.current_device()) if number is None else number

    @contextmanager
    def stream(one: torch.Stream | None) -> Any:
        if one is None:
            yield
            return
        with one:
            yield

    @contextmanager
    def device(one: Any) -> Any:
        before = extension.current_device()
        extension.set_device(index(one))
        try:
            yield
        finally:
            extension.set_device(before)

    module: Any = ModuleType(f"torch.{NAME}")
    module.Stream, module.Event = _stream, _event
    module.stream, module.device = stream, device
    module.current_stream = lambda device=None: torch.accelerator.current_stream(index(device))
    module.set_stream = torch.accelerator.set_stream
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.device_count, module.current_device = extension.device_count, extension.current_device
    module.set_device = lambda device: extension.set_device(index(device))
    module.synchronize = lambda device=None: extension.synchronize(index(device))
    module.empty_cache = lambda: None
    module.memory_allocated = lambda device=None: extension.memory_allocated(index(device))
    module.max_memory_allocated = lambda device=None: extension.max_memory_allocated(index(device))
    module.reset_peak_memory_stats = lambda device=None: extension.reset_peak(index(device))
    module.get_rng_state = lambda device=None: extension.rng_state()
    module.set_rng_state = lambda state, device=None: extension.set_rng_state(state)
    module.manual_seed = module.manual_seed_all = extension.manual_seed
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    return module


def _stream(device: Any = None, priority: int = 0) -> torch.Stream:
    return torch.Stream(device=device or NAME, priority=priority)


def _event(enable_timing: bool = False, blocking: bool = False) -> torch.Event:
    return torch.Event(device=NAME)
