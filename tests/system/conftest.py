"""Fixtures of tests of whole launches."""

import shutil
import uuid
from collections.abc import Iterator

import pytest

from tests.system.processes import ROOT


@pytest.fixture
def run() -> Iterator[str]:
    """A run's name of its own; what it left in output/ and logs/ goes with the test."""
    name = f"test-launch-{uuid.uuid4().hex[:8]}"
    yield name
    shutil.rmtree(ROOT / "output" / name, ignore_errors=True)
    for path in (ROOT / "logs").glob(f"{name}_*.log"):
        path.unlink()
