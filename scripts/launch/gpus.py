"""The GPUs of this machine: which ones a launch may use, and the settings that say what goes where.

Neither torch nor a driver is loaded: `nvidia-smi` is asked, and where it is missing the device files are counted.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from shared.errors import ConfigError

ASK_TIMEOUT_S = 30.0
VISIBLE = "CUDA_VISIBLE_DEVICES"


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
        "flag takes JSON. Empty: shared out, see docs/gpus.md.",
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
    """In the order of CUDA_VISIBLE_DEVICES, if that is set. Raises ConfigError for one that it names and that is not there."""
    environ = os.environ if environ is None else environ
    if settings.assume_gpus is not None:
        return [Gpu(str(number)) for number in range(settings.assume_gpus)]
    there = _of_nvidia_smi(environ) or _of_device_files()
    visible = environ.get(VISIBLE)
    if visible is None:
        return [Gpu(str(number), gpu.memory_mib) for number, gpu in enumerate(there)]
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return [_chosen(name, there) for name in names[: names.index("-1") if "-1" in names else None]]


def _chosen(name: str, there: list[Gpu]) -> Gpu:
    """As CUDA understands a name: a number, or the beginning of a UUID."""
    found = [gpu for number, gpu in enumerate(there) if name == str(number) or (gpu.name and gpu.name.startswith(name))]
    if not found:
        raise ConfigError(f"{VISIBLE} names GPU {name!r}; this machine has {len(there)}: 0 to {len(there) - 1}")
    return Gpu(name, found[0].memory_mib)


def _of_nvidia_smi(environ: Mapping[str, str]) -> list[Gpu]:
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return []
    command = [program, "--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [line.split(",") for line in asked.stdout.splitlines() if line.strip()] if asked.returncode == 0 else []
    return [Gpu(parts[0].strip(), _number(parts[-1])) for parts in lines]


def _number(text: str) -> int:
    return int(text) if text.strip().isdigit() else 0


def _of_device_files() -> list[Gpu]:
    numbers = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia*")]
    return [Gpu("") for number in numbers if number.isdigit()]
