"""Fixtures of the gateway's tests."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sampler.gateway.preload import PreloadedInterpreter

HEAVY = """
import os, pathlib, threading
with open(pathlib.Path(__file__).with_name("loads"), "a") as file:
    file.write("x")
if os.environ.get("HEAVY") == "threads":
    threading.Thread(target=threading.Event().wait, name="telemetry", daemon=True).start()
if os.environ.get("HEAVY") == "broken":
    raise RuntimeError("no licence")
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The folder of this test's sandboxes."""
    tmp_path_factory.getbasetemp()  # pytest's own is made when it is first asked for, and would be in this one
    with tempfile.TemporaryDirectory(prefix="tandem-test-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield folder


@pytest.fixture
async def preloaded() -> AsyncIterator[PreloadedInterpreter]:
    interpreter = PreloadedInterpreter()
    yield interpreter
    await interpreter.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the package `heavy`, which notes each time that it is loaded."""
    (tmp_path / "heavy.py").write_text(HEAVY)
    return tmp_path
