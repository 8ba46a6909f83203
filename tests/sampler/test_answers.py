"""Extraction of the answer."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampler.core.scorers.answers import extract_answer
from shared.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> 5 </answer>", "5"),
        ("<answer>4</answer> no, <answer>5</answer>.", "5"),
        ("<answer>4</answer> <answer>5", "4"),
        ("<answer><answer>5</answer>", "5"),
        ("<answer>two\nlines</answer>", "two\nlines"),
        ("</answer><answer>", None),
        ("<answer> </answer>", None),
        ("<answer>5</answer> I wrote it in <answer></answer>", "5"),
        ("<answer> \n</answer> <answer>\t</answer>", None),
        ("<answer>北京</answer>", "北京"),
        ("<answer>\u202f½ €\u00a0</answer>", "½ €"),
        ("<answer>4</answer><answer>5</answer>", "5"),
        ("<answer>a</b></answer>", "a</b>"),
        ("5", None),
    ],
)
def test_the_last_tagged_answer_counts(text: str, answer: str | None) -> None:
    assert extract_answer(text, "answer") == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{5}.", "5"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\fbox {a} then \boxed{b}", "b"),
        (r"\boxed{1} or \fbox{2}", "2"),
        (r"\boxed{1} and \boxed{2", "1"),
        (r"\boxed{1 \boxed{2}", "2"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{5}, as asked for in \boxed{}", "5"),
        (r"\boxed{ } \fbox{}", None),
        (r"\boxed{\boxed{}5}", r"\boxed{}5"),
        (r"\boxed{\left\{x^{2_{i}}\right\}}", r"\left\{x^{2_{i}}\right\}"),
        (r"\boxed{\text{北京, ½ €}}", r"\text{北京, ½ €}"),
        (r"\boxed{1}, \boxed{2}, \boxed{3}", "3"),
        (r"}} { \boxed{7} ", "7"),
        (r"\boxed{x}{y}", "x"),
        (r"\boxedx{5}", None),
        (r"\boxed5", None),
        (r"\\boxed{5}", None),
    ],
)
def test_the_last_balanced_box_counts(text: str, answer: str | None) -> None:
    assert extract_answer(text, "boxed") == answer


balanced = st.recursive(
    st.text("ab ", max_size=3), lambda inner: st.tuples(inner, inner).map(lambda p: f"{{{p[0]}}}{p[1]}"), max_leaves=6
)


@given(st.text(), balanced.filter(str.strip))
@settings(deadline=None)
def test_any_balanced_content_is_found_after_any_text(before: str, content: str) -> None:
    assert extract_answer(f"{before} \\boxed{{{content}}}", "boxed") == content.strip()


@pytest.mark.parametrize(
    "unit",
    [
        "\\boxed{",
        "\\boxed{}",
        "\\boxed{ ",
        "<answer></answer>",
        "<answer> ",
        "{",
        "}",
        "\\boxed   ",
        "<answer>",
        "</answer>",
        "\\",
    ],
)
def test_time_is_linear_in_the_length(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    began = time.process_time()
    extract_answer(text, "boxed")
    extract_answer(text, "answer")
    assert time.process_time() - began < 2


def test_an_unknown_schema_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'bxoed'; expected 'answer' or 'boxed'"):
        extract_answer("", "bxoed")
