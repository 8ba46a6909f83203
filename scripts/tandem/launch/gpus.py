"""The GPUs of this machine: which ones a launch may use, and the settings that say what goes where.

Neither torch nor a driver is loaded: `nvidia-smi` is asked, and where it is missing the device files are counted.
"""

import logging
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

log = logging.getLogger(__name__)

ASK_TIMEOUT_S = 30.0
VISIBLE = "CUDA_VISIBLE_DEVICES"
NONE = ("", "-1", "NoDevFiles")  # what is written for no GPU


@dataclass(frozen=True, slots=True)
class Gpu:
    """`name`: as CUDA_VISIBLE_DEVICES names it. `memory_mib` 0: unknown."""

    name: str
    memory_mib: int = 0


class PolicyGpus(BaseModel):
    """The GPUs of one policy on this machine, by their numbers from 0 among the visible ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    trainer: list[int] = []
    engines: list[list[int]] = []  # one engine each; with several GPUs it is tensor parallel over them


class GpuSettings(BaseModel):
    """The settings of a launch on a machine with GPUs."""

    gpus: dict[str, PolicyGpus] = Field(
        {},
        description="The GPUs of each policy's trainer and engines on this machine: {main: {trainer: [0], engines: [[1]]}}; a "
        "flag takes JSON. Empty: shared out, see docs/run/gpus.md.",
    )
    assume_gpus: int | None = Field(
        None,
        ge=0,
        le=1024,
        description="Plan with this number of GPUs instead of those of this machine: with --dry-run only.",
    )
    mem_fraction_static: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of a GPU's memory that SGLang takes. None: its own choice; 0.75 where a trainer has the GPU by turns.",
    )


def visible_gpus(settings: GpuSettings, environ: Mapping[str, str] | None = None) -> list[Gpu]:
    """Those that CUDA shows: all, or as CUDA_VISIBLE_DEVICES chooses. A name of no GPU ends that list, with a warning."""
    environ = os.environ if environ is None else environ
    if settings.assume_gpus is not None:
        return [Gpu(str(number)) for number in range(settings.assume_gpus)]
    there = _of_nvidia_smi(environ) or _of_device_files()
    visible = environ.get(VISIBLE)
    if visible is None or not there:
        return [Gpu(str(number), gpu.memory_mib) for number, gpu in enumerate(there)]
    chosen: list[Gpu] = []
    for name in (name.strip() for name in visible.split(",")):
        match = _chosen(name, there)
        if match is None:
            if name not in NONE:
                log.warning(
                    "%s names %r, which is none of this machine's GPUs (%d): CUDA shows only what stands before it",
                    VISIBLE,
                    name,
                    len(there),
                )
            break
        chosen.append(match)
    return chosen


def _chosen(name: str, there: list[Gpu]) -> Gpu | None:
    """As CUDA understands a name: a number, the beginning of one GPU's UUID, or a MIG device, which has a part of a GPU's memory.

    None: no GPU's. `nvidia-smi` lists no memory of MIG devices, so theirs is unknown.
    """
    if name.startswith("MIG-"):
        return Gpu(name)
    matching = [gpu for number, gpu in enumerate(there) if name == str(number) or _is_begun_by(gpu.name, name)]
    return Gpu(name, matching[0].memory_mib) if len(matching) == 1 else None


def _is_begun_by(uuid: str, name: str) -> bool:
    return name.startswith("GPU-") and uuid.startswith(name)


def _of_nvidia_smi(environ: Mapping[str, str]) -> list[Gpu]:
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return []
    command = [program, "--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [line.split(",") for line in process.stdout.splitlines() if line.strip()] if process.returncode == 0 else []
    return [Gpu(parts[0].strip(), _number(parts[-1])) for parts in lines]


def _number(text: str) -> int:
    return int(text) if text.strip().isdigit() else 0


def _of_device_files() -> list[Gpu]:
    numbers = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia*")]
    return [Gpu("") for number in numbers if number.isdigit()]
