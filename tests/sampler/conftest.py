"""The tool server of the tests: one for all tests of a file, or one that a test may kill."""

from collections.abc import Iterator

import pytest

from tests.sampler.boxes import Box, start_box


@pytest.fixture(scope="module")
def shared_box() -> Iterator[Box]:
    box = start_box()
    yield box
    box.kill()


@pytest.fixture
def box() -> Iterator[Box]:
    box = start_box()
    yield box
    box.kill()
