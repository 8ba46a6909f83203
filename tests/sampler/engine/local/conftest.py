"""`server` is one real engine for the whole session; each test gets it with the weights of the first model as version
"v0", not paused, idle. `reference` rescores tokens with plain transformers forwards of both models.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.sampler.engine.local.harness import Reference, Server, run_engine, write_model


@pytest.fixture(scope="session")
def model_paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two checkpoints of one architecture."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("models")
    return write_model(root / "m0", 0), write_model(root / "m1", 1)


@pytest.fixture(scope="session")
def reference(model_paths: tuple[Path, Path]) -> Reference:
    return Reference(model_paths)


@pytest.fixture(scope="session")
def session_server(model_paths: tuple[Path, Path]) -> Iterator[Server]:
    with run_engine(model_paths[0], "--max-running-requests", "12") as server:
        yield server


@pytest.fixture
def server(session_server: Server, model_paths: tuple[Path, Path]) -> Server:
    session_server.ok("/abort_request", {"abort_all": True})
    session_server.ok("/continue_generation", {})
    session_server.ok("/update_weights_from_disk", {"model_path": str(model_paths[0]), "weight_version": "v0"})
    return session_server
