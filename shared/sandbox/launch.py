"""What is started, where, and within which limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias


class IsolationLevel(StrEnum):
    """From the weakest to the strongest."""

    PROCESS = (
        "process"  # own user (as root), rlimits, no new privileges, seccomp, Landlock; sees the machine's processes
    )
    BUBBLEWRAP = "bubblewrap"  # also own namespaces and own root folder
    CONTAINER = "container"  # a container each, by Docker, with runc or gVisor's runsc


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Of one start, with all its descendants; `processes` holds for all of a session's starts together."""

    cpu_s: float = 600.0  # of processor time, by all processes together
    memory_mb: int = 1024
    processes: int = 64
    open_files: int = 256  # of one process
    file_mb: int = 64  # of one file
    folder_mb: int = 256  # of all files in the folder together; an entry counts at least 4 KB
    lifetime_s: float = 3600.0  # from the start
    output_mb: int = 256  # on stdout and stderr together


@dataclass(frozen=True, slots=True)
class ContainerOptions:
    """For IsolationLevel.CONTAINER."""

    image: str = "python:3.11-slim"
    runtime: str = ""  # of the engine, for example "runsc"; "": the engine's default
    cpus: float = 1.0
    network: str = "bridge"  # the engine's, for a launch that may use the network


@dataclass(frozen=True, slots=True)
class SandboxLaunch:
    """`environment` is added to a small one (PATH, LANG, HOME, TMPDIR): nothing is taken from the gateway's own."""

    command: tuple[str, ...]
    folder: Path  # the session's, from `new_folder`; the only place where files may be written
    environment: Mapping[str, str] = field(default_factory=dict)
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    network: bool = False
    readable: tuple[Path, ...] = ()  # besides the system's folders and the Python installation: programs, data
    container: ContainerOptions = field(default_factory=ContainerOptions)


# Their names in this package's interface.
Launch: TypeAlias = SandboxLaunch
Limits: TypeAlias = SandboxLimits
