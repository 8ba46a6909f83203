"""What tests see of their caller's environment: a few variables of the system, and where the parts lie that some tests need.

All others are taken away before the first test: settings of our programs (`MODEL`, `DB_CONNECTION_STRING`, `TANDEM_…`), of
Slurm, torchrun and Accelerate, keys of other services, proxies, and what changes the form of output (`COLUMNS`, `NO_COLOR`).
The language is always the same. A list of what goes would forget the next variable; a list of what stays cannot.
"""

import os
from collections.abc import MutableMapping
from pathlib import Path

SYSTEM = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LD_LIBRARY_PATH", "OMP_NUM_THREADS"),
    *("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONFAULTHANDLER"),
)
PREFIXES = ("PYTEST_", "COVERAGE_", "COV_", "CUDA_", "NVIDIA_", "DOCKER_", "TANDEM_TEST_")
PARTS = (
    *("CHECK_SGLANG", "SGLANG_ROOT", "SGLANG_ROUTER", "CHECK_VLLM", "VLLM_ROOT"),
    *("MONGOD", "MARIADBD", "MARIADB_PYTHON", "VERIFIERS_PYTHON"),
    *("OPENENV_PYTHON", "AGENTRL_PYTHON", "GAMES_PYTHON", "CRD_FILES", "MCP_CONFORMANCE_CONTEXT", "HEAVY"),
)
FIXED = {"LANG": "C.UTF-8", "TERM": "xterm"}


def python_path(root: Path) -> str:
    """`PYTHONPATH` for the packages of the tree `root`, also where another one is installed."""
    return f"{root}{os.pathsep}{root / 'scripts'}"


def make_clean(environment: MutableMapping[str, str], root: Path) -> None:
    """Leave only what is listed. `PYTHONPATH` stays if it ends with this tree: `tests.mutants` tests a copy, and in front of it
    `scripts.gpu_check` has the packages of its archive.
    """
    for name in list(environment):
        stays = name in SYSTEM or name in PARTS or name.startswith(PREFIXES)
        if not stays and (name != "PYTHONPATH" or not environment[name].endswith(python_path(root))):
            del environment[name]
    environment.update(FIXED)
