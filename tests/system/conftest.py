"""Fixtures of tests of whole launches."""

import os
import shutil
import uuid
from collections.abc import Iterator

import pytest

from tests.system.processes import ROOT

REMOTE_DATABASE = "mongodb://u:secret-word@10.0.0.1:27017,10.0.0.2/?replicaSet=rs0"


@pytest.fixture
def run() -> Iterator[str]:
    """A run's name of its own; what it left in output/ and logs/ goes with the test."""
    name = f"test-launch-{uuid.uuid4().hex[:8]}"
    yield name
    shutil.rmtree(ROOT / "output" / name, ignore_errors=True)
    for path in (ROOT / "logs").glob(f"{name}_*.log"):
        path.unlink()


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No variable of a place in the environment, and a database on other machines."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "TORCHELASTIC_", "MASTER_", "GROUP_", "NODE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("DB_CONNECTION_STRING", REMOTE_DATABASE)
    return monkeypatch
