"""Scores are numbers about answers; failures are never numbers."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sampler.errors import ScorerFailed
from sampler.math_checker import MathChecker
from sampler.scorers import (
    Score,
    ScoringRequest,
    mathematics,
    register_scorer,
    registry,
    score_answer,
    scorer_names,
    text,
)
from shared.errors import ConfigError


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def math_process() -> AsyncIterator[None]:
    yield
    await mathematics._CHECKER.close()


def request(answer: str | None, *accepted: str) -> ScoringRequest:
    return ScoringRequest(answer=answer, accepted=accepted)


@pytest.mark.parametrize(
    ("answer", "accepted", "value"),
    [(" The  Red\nHOUSE ", "the red house", 1), ("red house", "the red house", 0), ("ﬁve", "five", 1), ("ß", "SS", 1)],
)
async def test_exact_match_ignores_case_and_white_space_only(answer: str, accepted: str, value: float) -> None:
    assert (await score_answer("exact_match", request(answer, "zzz", accepted))).value == value


async def test_a_missing_answer_scores_zero_and_says_so() -> None:
    assert await score_answer("math", request(None, "5")) == Score(0.0, {"reason": "no answer"})


@pytest.mark.parametrize(
    ("answer", "accepted", "value"),
    [("1,234", "1234", 1), ("0.50", "1/2", 1), ("$-7$", "-7", 1), ("7", "8", 0), ("+3", "3.0", 1), ("2/4", "1/2", 1)],
)
async def test_plain_numbers_are_compared_without_the_worker(answer: str, accepted: str, value: float) -> None:
    assert await score_answer("math", request(answer, accepted)) == Score(value, {"by": "number"})


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("math_process")
@pytest.mark.parametrize(
    ("answer", "accepted", "value"),
    [
        (r"\frac{1}{2}", "0.5", 1),
        ("x^2 + 2x + 1", "(x+1)^2", 1),
        (r"\sqrt{8}", r"2\sqrt{2}", 1),
        ("x + 1", "x + 2", 0),
        (r"\{1, 2\}", r"\{2, 1\}", 1),
        ("blue", "5", 0),
        ("0.3333333", "1/3", 1),
    ],
)
async def test_expressions_are_compared_by_math_verify(answer: str, accepted: str, value: float) -> None:
    score = await score_answer("math", request(answer, accepted))
    assert (score.value, score.details["by"]) == (value, "math-verify")


async def test_an_answer_that_computes_for_ever_is_not_equal_and_the_next_one_is_judged() -> None:
    checker = MathChecker(cpu_s=1.0)
    began = time.monotonic()
    equal, why = await checker.equal(r"9^{9^{9^{9}}}", [r"\frac{1}{2}+x"])
    assert not equal
    assert "not decided" in why or not why
    equal, why = await checker.equal(r"10^{10^{10}} \cdot 3^{10^{9}}", [r"3^{10^9} + 1"])
    assert not equal
    assert await checker.equal("x+x", ["2x"]) == (True, "")
    assert time.monotonic() - began < 40
    await checker.close()


async def test_a_worker_that_is_killed_is_a_failure_and_is_replaced() -> None:
    checker = MathChecker()
    assert (await checker.equal("x+x", ["2x"]))[0]
    assert checker._process is not None
    checker._process.kill()
    with pytest.raises(ScorerFailed, match="math worker"):
        await checker.equal("x+x", ["2x"])
    assert (await checker.equal("x+x", ["2x"]))[0]
    await checker.close()


async def test_concurrent_questions_get_their_own_answers() -> None:
    checker = MathChecker()
    answers = await asyncio.gather(*(checker.equal(f"x+{i}", ["x+3"]) for i in range(8)))
    assert [equal for equal, _ in answers] == [i == 3 for i in range(8)]
    await checker.close()


@pytest.mark.parametrize("kind", ["raises", "no number", "nan", "slow"])
async def test_a_scorer_that_fails_gives_no_score(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_SCORERS", dict(registry._SCORERS))

    @register_scorer("shaky", needs_answer=False)
    async def shaky(request: ScoringRequest) -> Score:
        if kind == "raises":
            raise KeyError("judge")
        await asyncio.sleep(10 if kind == "slow" else 0)
        return Score(float("nan")) if kind == "nan" else Score("5")  # type: ignore[arg-type]  # what is tested

    with pytest.raises(ScorerFailed, match="shaky"):
        await score_answer("shaky", request(None), timeout_s=0.2)


async def test_an_unknown_scorer_names_the_known_ones() -> None:
    assert {"exact_match", "math"} <= set(scorer_names())
    with pytest.raises(ConfigError, match="'maths' is unknown; expected one of agentcpm, exact_match, f1"):
        await score_answer("maths", request("5", "5"))


def test_a_name_is_registered_once() -> None:
    register_scorer("math")(mathematics.math_equal)
    with pytest.raises(ConfigError, match="twice"):
        register_scorer("math")(text.exact_match)
