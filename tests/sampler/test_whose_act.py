"""docs/inside/whose_act.md is whole: every error and every termination has a row, and every row a test that exists."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sampler.core import errors
from sampler.core.episode import episode
from shared import errors as shared_errors
from shared.documents.states import Termination
from shared.errors import TandemError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "inside" / "whose_act.md"
# Of the errors of `shared`, those that an episode meets; the others are of commands, files and the start.
OF_EPISODES = {"ConfigError", "OwnCodeFailed", "DoesNotFit", "LeaseLost", "IllegalMove"}


def rows() -> Iterator[tuple[str, str]]:
    """The cause and the test of each row of the page's tables."""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[-1].startswith("`tests/"):
            yield cells[0], cells[-1].strip("`")


def own_errors() -> set[str]:
    found = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, TandemError)}
    return (found - set(vars(shared_errors))) | OF_EPISODES


def test_every_error_and_every_termination_has_a_row() -> None:
    causes = {name for cause, _ in rows() for name in re.findall(r"`(\w+)`", cause)}
    assert own_errors() - causes == set()
    assert {one.value for one in Termination} - causes == set()


def test_every_error_that_ends_an_episode_is_named_in_the_page() -> None:
    """What `play` catches is a part of the table, too."""
    caught = set(re.findall(r"\b([A-Z]\w+)\b", inspect.getsource(episode.play))) & set(vars(episode))
    named = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    assert {name for name in caught if inspect.isclass(getattr(episode, name))} - named <= {
        "AsyncSampler",
        "DeferredScore",
    }


@pytest.mark.parametrize("test", sorted({test for _, test in rows()}))
def test_the_test_of_each_row_exists(test: str) -> None:
    file, _, name = test.partition("::")
    assert re.search(rf"^(?:async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), test
