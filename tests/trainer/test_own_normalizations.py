"""A user's own normalization of a batch's advantages: registered by name, and the same on one rank and on two."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import ConfigError, OwnCodeFailed
from tests.trainer.test_batch_advantages import advantages, alone, on_two_ranks, random_batch
from trainer.data.advantages import normalize
from trainer.settings.config import TrainerConfig
from trainer.settings.normalizations import NORMALIZATIONS, BatchTurn, register_normalization

HERE = "tests/trainer/test_own_normalizations.py:"


def ranks(turns: Sequence[BatchTurn]) -> list[float]:
    """Each advantage's place among those of the batch, from -1 to 1."""
    found = sorted({turn.advantage for turn in turns})
    return [2 * found.index(turn.advantage) / max(len(found) - 1, 1) - 1 for turn in turns]


def misspelt(turns: Sequence[BatchTurn]) -> list[float]:
    return [turn.advantages for turn in turns]  # type: ignore[attr-defined]  # what is tested


def one_less(turns: Sequence[BatchTurn]) -> list[float]:
    return ranks(turns)[1:]


def infinite(turns: Sequence[BatchTurn]) -> list[float]:
    return [float("inf") for _ in turns]


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that a test registers are forgotten with it."""
    monkeypatch.setattr(NORMALIZATIONS, "_known", dict(NORMALIZATIONS._known))
    for function in (ranks, misspelt, one_less, infinite):
        register_normalization(function.__name__)(function)


@settings(max_examples=20, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_a_normalization_sees_every_turn_of_the_batch_whatever_ranks_there_are(rng: Random) -> None:
    data = random_batch(rng)
    trees, _ = normalize(data, [d.tree for d in data], "ranks", alone)
    found = sorted({d.advantage for row in data for d in row.tree.dispatches})
    places = {a: 2 * k / max(len(found) - 1, 1) - 1 for k, a in enumerate(found)}
    assert advantages(trees) == [[places[d.advantage] for d in row.tree.dispatches] for row in data]
    shared, _ = on_two_ranks(data, "ranks", rng.randint(0, len(data)))
    assert advantages(shared) == advantages(trees)


def test_the_settings_take_a_name_that_is_registered() -> None:
    given = ["--run", "r", "--db_connection_string", "x", "--model_name_or_path", "."]
    assert TrainerConfig.load([*given, "--advantage_normalization", "ranks"]).data.advantage_normalization == "ranks"
    with pytest.raises(ConfigError, match=r"advantage_normalization 'batchstd' is unknown; did you mean \"batch_std\""):
        TrainerConfig.load([*given, "--advantage_normalization", "batchstd"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("misspelt", f"failed: AttributeError: 'BatchTurn' object has no attribute 'advantages'; at {HERE}"),
        ("one_less", r"returned .*; expected a list of \d+ numbers, one for each turn; at "),
        ("infinite", "gave turn 0:0 inf; expected finite numbers; at "),
    ],
)
def test_a_mistake_names_its_line(name: str, message: str) -> None:
    data = random_batch(Random(1))
    with pytest.raises(OwnCodeFailed, match=f"^advantage_normalization '{name}' {message}"):
        normalize(data, [d.tree for d in data], name, alone)
