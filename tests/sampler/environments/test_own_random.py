"""Sessions draw from global generators what their own seed gives, whatever others draw between."""

import random
import subprocess
import sys

import numpy as np
import pytest

from sampler.environments.own_random import OwnRandom

torch = pytest.importorskip("torch")


def drawn() -> tuple[float, float, float, float]:
    return random.random(), random.gauss(0, 1), float(np.random.standard_normal()), float(torch.rand(1))


def numbers(own: OwnRandom, count: int) -> list[tuple[float, float, float, float]]:
    found = []
    for _ in range(count):
        with own.drawn():
            found.append(drawn())
    return found


@pytest.mark.parametrize("seed", [0, 3, 2**40 + 1, 2**63 - 1, "text", "-1"])
def test_one_seed_gives_one_sequence_with_any_other_sessions_between(seed: int | str) -> None:
    alone = numbers(OwnRandom(seed), 4)
    mine, other = OwnRandom(seed), OwnRandom(5)
    between = []
    for _ in range(4):
        between += numbers(mine, 1)
        numbers(other, 2)
        random.random()
    assert (between, len(set(alone))) == (alone, 4)
    assert numbers(OwnRandom(6), 4) != alone


def test_a_seed_gives_the_numbers_that_python_gives_for_it() -> None:
    with OwnRandom(7).drawn():
        assert random.random() == random.Random(7).random()


def test_a_package_that_is_loaded_within_a_session_is_seeded_as_it_loads() -> None:
    code = (
        "from sampler.environments.own_random import OwnRandom\n"
        "def one():\n"
        "    with OwnRandom(3).drawn():\n"
        "        import numpy\n"
        "        return numpy.random.rand()\n"
        "print(one() == one())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "True"


def test_a_session_that_draws_nothing_holds_no_state() -> None:
    own = OwnRandom(1)
    with own.drawn():
        pass
    assert own._states == {}


def test_generators_of_numpy_that_are_made_without_a_seed_have_the_sessions() -> None:
    def made(own: OwnRandom) -> tuple[float, float, float]:
        with own.drawn():
            return np.random.default_rng().random(), np.random.default_rng().random(), np.random.RandomState().rand()

    first = made(OwnRandom(3))
    assert (made(OwnRandom(3)), len(set(first))) == (first, 3)
    assert made(OwnRandom(4)) != first
    assert np.random.default_rng().random() != np.random.default_rng().random(), "elsewhere they are the system's"
