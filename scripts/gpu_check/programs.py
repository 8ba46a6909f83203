"""The programs of the checks: each a child with its own time limit, ended with all its children, on the chosen device."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import hostgpu

ROOT = Path(__file__).parents[2]
OVER = 124  # the exit status of what did not end in time
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # the layouts' parent forks, and must not have started CUDA
    "GLOO_SOCKET_IFNAME": "lo",  # else both take the address of the host's name, which may have none
    "NCCL_SOCKET_IFNAME": "lo",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """A row. `right` None: this device cannot show it, or the time was over."""

    what: str
    expected: str
    measured: str
    right: bool | None


@dataclass(frozen=True, slots=True)
class GpuCheck:
    """`expected`: the contents of expected.json. `end`: of all checks, by the monotonic clock. `match`: in a row's name."""

    device: str
    gpus: int
    expected: dict[str, Any]
    end: float
    match: str = ""

    @property
    def on_host(self) -> bool:
        """Without a GPU, where models are small and Triton is missing."""
        return self.device != "cuda"

    def remaining_s(self) -> float:
        return self.end - time.monotonic()

    def unreached(self, what: str, expected: str) -> Shown:
        return Shown(what, expected, "the time was over", None)

    def run(self, arguments: Sequence[str], limit_s: float = 600.0) -> tuple[int, str]:
        """Exit status and output of Python with these arguments; `OVER` after `limit_s` or at the end of all checks."""
        environment = os.environ | ENVIRONMENT | {"TANDEM_TEST_DEVICE": self.device, "PYTHONPATH": _import_path()}
        if self.device == hostgpu.NAME:
            environment |= hostgpu.ENVIRONMENT
        with tempfile.TemporaryFile() as output:
            child = subprocess.Popen(
                [sys.executable, *arguments],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                start_new_session=True,
            )
            try:
                status = child.wait(timeout=max(min(self.remaining_s(), limit_s), 1.0))
            except subprocess.TimeoutExpired:
                status = OVER
            finally:
                _end_session(child)
            output.seek(0)
            return status, output.read().decode("utf-8", errors="replace")


def _import_path() -> str:
    """With the checkout's packages, which are installed in no environment where it was unpacked: `tandem` lies in scripts."""
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*([given] if given else []), str(ROOT), str(ROOT / "scripts")])


def _end_session(child: "subprocess.Popen[bytes]") -> None:
    """The ranks of a layout would hold their GPUs for as long as a collective may take."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
