"""The scorer `math` against a corpus of verdicts, and what must hold for any text."""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampler.bundled_scorers.math_checker import MathChecker
from sampler.bundled_scorers.maths import TooHard, decide
from sampler.bundled_scorers.maths.by_math_verify import by_math_verify
from sampler.bundled_scorers.maths.comparing import answer_of
from sampler.scorers import ScoringRequest, mathematics, score_answer
from scripts.bench.math_verdicts import pairs

UNREAD = {  # right, and called wrong: what the reading does not know yet
    ("17 (since 8+9=17)", "17"),
    (r"x \in (-2,2)", "|x| < 2"),
    (r"\begin{bmatrix}2&0\\0&2\end{bmatrix}", r"2\begin{bmatrix}1&0\\0&1\end{bmatrix}"),
}
HARD = ("2^{2^{2^{2^{2^{2}}}}}", "9**9**9**9", r"\int_0^1 x^{10^{10}}")
PIECES = st.sampled_from(
    [*r"0123456789+-*/^_=<>(){}[]|,.;:!%$xyie \ ", r"\frac", r"\sqrt", r"\pm", r"\cup", r"\text{", r"\begin{pmatrix}", "&", r"\\",
     r"\end{pmatrix}", r"\left(", r"\right)", " cm", " or ", "about ", "π", "½", "²", "**", r"\overline{", r"\log", r"\foo"]
)  # fmt: skip


def equal(answer: str, accepted: str) -> bool:
    found = decide(answer, accepted)
    return by_math_verify(answer, accepted) if found is None else found


def test_the_corpus_has_many_kinds_and_a_third_of_wrong_answers() -> None:
    found = pairs()
    assert len(found) >= 1000
    assert len({(pair.answer, pair.accepted) for pair in found}) == len(found)
    assert min(Counter(pair.kind for pair in found).values()) >= 10
    assert sum(not pair.verdict for pair in found) >= len(found) / 3


def test_no_wrong_answer_is_called_right_and_nearly_no_right_one_wrong() -> None:
    """Beside 49 and 301 of math-verify's better use: `python -m scripts.bench.math_verdicts`."""
    wrong = {(p.answer, p.accepted, p.verdict) for p in pairs() if equal(p.answer, p.accepted) != p.verdict}
    assert {(answer, accepted) for answer, accepted, verdict in wrong if not verdict} == set()
    assert {(answer, accepted) for answer, accepted, _ in wrong} == UNREAD


def test_a_date_is_no_difference() -> None:
    assert not equal("2024-01-05", "2018")
    assert not equal("2018", "2024-01-05")
    assert equal("**2024-01-05**", "2024-01-05")
    assert equal("2024-1-5", "2018")


@given(st.lists(PIECES, min_size=1, max_size=12).map("".join))
@settings(max_examples=300, deadline=None)
def test_equal_texts_are_equal_and_no_text_breaks_the_reading(text: str) -> None:
    answer_of(text)
    if text.strip():
        assert decide(text, text)
        assert decide(f" {text}\n", text)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=12), st.integers(-3, 3))
@settings(deadline=None)
def test_decimals_are_compared_exactly(value: Decimal, steps: int) -> None:
    other = value + steps * Decimal(1).scaleb(-12)
    assert decide(f"{value:f}", f"{other:f}") is (steps == 0)


@given(st.fractions(max_denominator=10**6), st.fractions(max_denominator=10**6))
@settings(deadline=None)
def test_fractions_are_compared_exactly(a: Fraction, b: Fraction) -> None:
    written = [rf"\frac{{{one.numerator}}}{{{one.denominator}}}" for one in (a, b)]
    assert decide(written[0], written[1]) is (a == b)
    assert decide(f"{a.numerator}/{a.denominator}", written[0])


LONG = ("(" * 5_000, "{" * 5_000 + "x" + "}" * 5_000, "-" * 5_000 + "1", "1," * 4_000 + "1", "x^" * 4_000 + "2", "a" * 9_999,
        r"\text{" * 2_000, "1 " * 4_000, "**" * 5_000, r"\frac" * 1_500, "$" * 9_999)  # fmt: skip


@pytest.mark.parametrize("text", LONG)
def test_a_long_text_takes_seconds_at_most(text: str) -> None:
    begun = time.process_time()
    for _ in range(2):
        with suppress(TooHard):
            decide(text, "5")
    assert time.process_time() - begun < 10


async def test_hard_answers_are_wrong_right_ones_behind_them_right_and_none_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checker = MathChecker(cpu_s=2.0, workers=2)
    monkeypatch.setattr(mathematics, "_CHECKER", checker)
    asked = [ScoringRequest(answer=answer, accepted=("x+y",)) for answer in HARD * 2]
    asked += [ScoringRequest(answer="y+x", accepted=("x+y",))] * 8
    found = await asyncio.gather(*(score_answer("math", request) for request in asked))
    await checker.close()
    assert [one.value for one in found] == [0.0] * 6 + [1.0] * 8
