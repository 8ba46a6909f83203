"""The tool server of the tests: one for all tests of a file, or one that a test may kill. Scorers that a test registers."""

from collections.abc import Iterator

import pytest

from sampler.core.scorers import registry
from sampler.scorers import GroupRequest
from shared.tasks import scorer_names
from tests.sampler.boxes import Box, start_box
from tests.sampler.scored_groups import requests_of_by_length


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


@pytest.fixture
def own_scorers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that a test registers are forgotten with it."""
    monkeypatch.setattr(registry, "_SCORERS", dict(registry._SCORERS))
    monkeypatch.setattr(scorer_names, "_REGISTERED", dict(scorer_names._REGISTERED))


@pytest.fixture
def asked(own_scorers: None) -> list[GroupRequest]:
    """The requests of the group scorer `by_length`."""
    return requests_of_by_length()
