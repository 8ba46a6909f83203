"""Services of environments whose workers have a foreign package: here, in the environment of GAMES_PYTHON, or in that of
scripts/setup_games.sh, which scripts/check makes."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.sampler.environments.services import Service, service

INSTALLED = Path(__file__).parents[3] / ".games" / "venv" / "bin" / "python"


def python_with(package: str) -> str:
    """A Python that has the package; skips the test without one."""
    if importlib.util.find_spec(package) is not None:
        return sys.executable
    other = os.environ.get("GAMES_PYTHON") or str(INSTALLED)
    if (
        Path(other).exists()
        and subprocess.run([other, "-c", f"import {package}"], capture_output=True, check=False).returncode == 0
    ):
        return other
    pytest.skip(
        f"{package} is not installed here, nor for GAMES_PYTHON, a Python that has it: run scripts/setup_games.sh"
    )


@contextmanager
def adapters(package: str, *names: str, python: str | None = None, **environment: str) -> Iterator[Service]:
    """`python`: of the workers; None: one that has the package."""
    kinds = ",".join(f"{name.rpartition('=')[0] or name}={package}:{name.rpartition('=')[2]}" for name in names)
    flags = ("--workers", "1", "--worker_python", python or python_with(package), "--environments", kinds)
    with service(*flags, **environment) as found:
        yield found
