"""One engine of each kind that reads images, for all tests of this folder: two of the three take half a minute to start."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.engines import running
from tests.shared.tiny_vision_model import write_vision_model

FLAGS = {
    "local": ["--context-length", "1024", "--kv-cache-bytes", "50000000"],
    "sglang": ["--context-length", "1024", "--mem-fraction-static", "0.3"],
    "vllm": ["--max-model-len", "1024", "--enforce-eager"],
}


@pytest.fixture(scope="package")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two versions of all weights, those of the vision tower among them."""
    return (
        write_vision_model(tmp_path_factory.mktemp("vision-0"), seed=0),
        write_vision_model(tmp_path_factory.mktemp("vision-1"), seed=1),
    )


@pytest.fixture(scope="package", params=["local", "sglang", "vllm"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="package")
def url(kind: str, folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(kind, folders[0], tmp_path_factory.mktemp(kind) / "engine.log", *FLAGS[kind]) as url:
        yield url
