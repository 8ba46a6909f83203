"""A verdict is read if the judge gave exactly one, and never guessed otherwise."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampler.core.api_models.verdict import read_verdict

CORRECT = [
    "Correct",
    "correct.",
    "**Correct**",
    "# Verdict\nCorrect",
    "Final Decision: Correct",
    "Answer: correct",
    '"Correct"',
    "- Correct",
    '{"verdict": "Correct", "why": "both are 4"}',
    '```json\n{"correct": true}\n```',
    "correct: yes\nconfidence: 90%",
    "The two agree.\n\n**Verdict:** Correct",
    "Correct — the same city.",
    "Correct. Both are four.",
    "Yes",
    "The predicted answer is correct.",
    "Both say 4.\nTherefore, the model's answer is **correct**.",
    "extracted: 4\nis_correct: True",
    "Judgement: right",
    "Equivalent: yes",
    "word " * 10_000 + "\nCorrect",
]
INCORRECT = [
    "Incorrect",
    "INCORRECT!",
    "__Incorrect__",
    "not correct",
    "Not  Correct.",
    "Verdict: **Incorrect**.",
    '{"is_correct": false}',
    "No.",
    "Incorrect, because 5 is not 4.",
    "reasoning: the labeled answer is 4.\ncorrect: no",
    "The answer is not correct.",
    "Wrong",
    "The labeled answer is 4.\nThe predicted answer is 5.\nIncorrect",
    "Judgment: incorrect",
]
NEITHER = [
    "",
    "4",
    "Correct or Incorrect?",
    "Correct\nIncorrect",
    "It isn't correct",
    "Correct. But it is incorrect in part.",
    "maybe",
    "Correct. No, wait: it isn't correct.",
    "Correct. It is not correct.",
    "The predicted answer is correct in part.",
    "[]",
    "I cannot say whether it is correct.",
    "Correct answer would be 4, and the prediction says 5.",
    "Respond with Correct or Incorrect",
    '{"correct": true, "verdict": "incorrect"}',
    "It would be correct if",
    "incorrectly",
    "correctness",
    '{"verdict": "unsure"}',
    "C",
    "判断",
]


@pytest.mark.parametrize(
    ("text", "verdict"),
    [*((text, True) for text in CORRECT), *((text, False) for text in INCORRECT), *((text, None) for text in NEITHER)],
)
def test_a_clear_verdict_is_read_and_an_ambiguous_one_is_none(text: str, verdict: bool | None) -> None:
    assert read_verdict(text) is verdict


@given(st.text(), st.sampled_from(["Correct", "Incorrect"]))
def test_reading_a_verdict_never_raises(text: str, word: str) -> None:
    assert read_verdict(text + word) in (True, False, None)


@pytest.mark.parametrize(
    "unit", ["correct", "correct ", "correct:", "*", " ", "not ", "- ", "verdict ", '" ', "is ", "\n"]
)
def test_reading_a_verdict_takes_bounded_time(unit: str) -> None:
    began = time.process_time()
    read_verdict(unit * 200_000)
    assert time.process_time() - began < 2
