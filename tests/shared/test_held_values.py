"""Any value that a user's class or a scorer passes on is converted to one that store, tokenizer and JSON can hold."""

import json
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import bson
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.documents import ToolCallResult
from shared.documents.states import SlotStatus
from shared.held_values import held, held_documents, held_messages
from shared.outside_values import problem_of


class Mute:
    def __repr__(self) -> str:
        raise ValueError("no words")

    def tolist(self) -> list[int]:
        raise ValueError("no list")


TWICE: dict[str, Any] = {}
TWICE |= {"a": TWICE, "b": TWICE}
DEEP: Any = 1
for _ in range(5_000):
    DEEP = [DEEP]

CONVERTED: dict[str, tuple[Any, Any]] = {
    "half a pair": ("a\ud83d", "a\ufffd"),
    "a whole pair in two halves": ("\ud83d\ude00", "\U0001f600"),
    "a null character": ({"a\0": "\0"}, {"a\ufffd": "\ufffd"}),
    "a large number": (2**64, "18446744073709551616"),
    "the largest": (2**63 - 1, 2**63 - 1),
    "not finite": ([math.nan, math.inf, -math.inf], ["nan", "inf", "-inf"]),
    "names": ({1: 2, None: 3, (1, 2): 4}, {"1": 2, "None": 3, "(1, 2)": 4}),
    "a tuple, a set": ([(1, 2), {3}], [[1, 2], [3]]),
    "numbers of numpy": (
        [np.float32(0.5), np.int64(3), np.bool_(True), np.array([[1], [2]])],
        [0.5, 3, True, [[1], [2]]],
    ),
    "fractions": ([Fraction(1, 2), Decimal("0.1")], [0.5, "Decimal('0.1')"]),
    "an enumeration": (SlotStatus.OPEN, "open"),
    "no words": (Mute(), "<Mute>"),
    "what is fine": ({"$set": {"a.b": "$x"}, "": [1.5, True, None]}, {"$set": {"a.b": "$x"}, "": [1.5, True, None]}),
}


@pytest.mark.parametrize("kind", CONVERTED)
def test_what_cannot_be_held_is_converted_in_one_way(kind: str) -> None:
    value, expected = CONVERTED[kind]
    assert held(value) == expected


ENDLESS: dict[str, Any] = {"twice": TWICE, "deep": DEEP, "digits": 10**5000, "listed": [10**5000]}


@pytest.mark.parametrize("kind", ENDLESS)
def test_values_without_end_are_bounded(kind: str) -> None:
    found = held(ENDLESS[kind])
    assert problem_of(found, most_depth=66) is None
    json.dumps(found)


PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()), max_size=8)
)
NAMES = st.text(st.characters(exclude_categories=()), max_size=5) | st.integers() | st.none()
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=20
)


@given(VALUES)
def test_any_value_can_be_stored_sent_and_read_back(value: Any) -> None:
    found = held(value)
    assert problem_of(found) is None
    assert bson.decode(bson.encode({"v": found})) == {"v": found}
    json.dumps(found).encode()
    if problem_of(value) is None:
        assert found == value
    assert held(found) == found


def test_messages_and_calls_that_can_be_held_stay_the_same_objects() -> None:
    fine, wrong = {"role": "user", "content": "a"}, {"role": "user", "content": "a\ud83d"}
    sampled = {"role": "assistant", "content": "a\0"}
    found = held_messages([fine, wrong, sampled])
    assert found[0] is fine
    assert found[2] is sampled
    assert found[1] == {"role": "user", "content": "a\ufffd"}
    call = ToolCallResult(name="f", arguments={"a": 2**64}, result="\ud83d", is_error=False, duration_s=1.0)
    (converted,) = held_documents([call])
    assert (converted.arguments, converted.result) == ({"a": "18446744073709551616"}, "\ufffd")
