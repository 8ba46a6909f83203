"""Fixtures of the gateway's tests."""

import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The folder of this test's sandboxes."""
    tmp_path_factory.getbasetemp()  # pytest's own is made when it is first asked for, and would be in this one
    with tempfile.TemporaryDirectory(prefix="tandem-test-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield folder
