"""Every escape attempt meets what its table says, at each level that this machine has (containers: if an engine answers)."""

import os

import pytest

from shared.sandbox import IsolationLevel
from shared.sandbox.levels import problem
from tests.shared.sandbox.escape_programs import Escape
from tests.shared.sandbox.escapes import ESCAPES, alone, as_expected, batch, machine, missing

pytestmark = pytest.mark.slow
_batches: dict[IsolationLevel, dict[str, str]] = {}


def needs(level: IsolationLevel, escape: Escape) -> None:
    if why := problem(level):
        pytest.skip(f"{level}: {why}")
    if level is IsolationLevel.CONTAINER and "DOCKER_HOST" not in os.environ:
        pytest.skip("container: DOCKER_HOST is not set; the attempts need an engine that may run test containers")
    if lacking := missing(escape, level):
        pytest.skip(f"not stopped at this level without {lacking}")


def test_there_are_at_least_forty_attempts_with_names_of_their_own() -> None:
    assert len({escape.name for escape in ESCAPES}) == len(ESCAPES) >= 40


@pytest.mark.parametrize("level", IsolationLevel)
@pytest.mark.parametrize(
    "escape", [one for one in ESCAPES if not one.alone], ids=lambda one: one.name.replace(" ", "_")
)
async def test_an_attempt_meets_what_the_table_says(level: IsolationLevel, escape: Escape) -> None:
    needs(level, escape)
    if level not in _batches:
        async with machine(level) as where:
            _batches[level] = await batch(where, ESCAPES)
    check(escape, level, _batches[level].get(escape.name, "no answer"))


@pytest.mark.parametrize(
    "level",
    [
        pytest.param(level, marks=() if level is IsolationLevel.PROCESS else pytest.mark.thorough)
        for level in IsolationLevel
    ],
)
@pytest.mark.parametrize("escape", [one for one in ESCAPES if one.alone], ids=lambda one: one.name.replace(" ", "_"))
async def test_a_program_that_takes_more_than_its_share_is_stopped(level: IsolationLevel, escape: Escape) -> None:
    needs(level, escape)
    async with machine(level) as where:
        check(escape, level, await alone(where, escape))


def check(escape: Escape, level: IsolationLevel, outcome: str) -> None:
    assert as_expected(escape, level, outcome), f"{outcome} is none of {escape.expected(level)}"
