"""The bundled example is a folder of scripts, not a package: put it and `scripts/` on the path, build its parts once."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE_DIR = ROOT / "assets" / "example"
sys.path[:0] = [str(EXAMPLE_DIR), str(ROOT / "scripts")]


@pytest.fixture(scope="session")
def example_dir() -> Path:
    return EXAMPLE_DIR


@pytest.fixture(scope="session")
def example() -> Any:
    from tasks import build_example

    return build_example(seed=7)


@pytest.fixture(scope="session")
def demos(example: Any) -> list[dict[str, Any]]:
    from demonstrations import demonstrations

    return list(demonstrations(example, count=4_000, seed=7))


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from make_example_model import build_tokenizer

    return build_tokenizer()


@pytest.fixture(scope="module")
def tool_url() -> Iterator[str]:
    """The address of a tool server in a process of its own."""
    command = [sys.executable, str(EXAMPLE_DIR / "tool_server.py"), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        yield server.stderr.readline().split()[-1]
        server.terminate()
        server.wait(timeout=60)
