"""A plain value from outside is either storable in every part, or has a problem with its path."""

import json
import math
from typing import Any

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.outside_values import MAX_DEPTH, problem_of

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5)
ANY = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=3), inner, max_size=3)
    ),
    max_leaves=20,
)


def nested(levels: int) -> Any:
    value: Any = 1
    for at in range(levels):
        value = [value] if at % 2 else {"a": value}
    return value


@given(ANY)
def test_what_has_no_problem_is_stored_and_sent_as_it_is(value: Any) -> None:
    if problem_of(value) is None:
        assert bson.decode(bson.encode({"value": value})) == {"value": value}
        assert json.loads(json.dumps(value, allow_nan=False).encode()) == value
    else:
        with pytest.raises((ValueError, OverflowError)):
            store_and_send(value)


def store_and_send(value: Any) -> None:
    """Raises for what a database, a wire or a library that ends texts at U+0000 would change or refuse."""
    bson.encode({"value": value})
    if "\\u0000" in json.dumps(json.dumps(value, ensure_ascii=False, allow_nan=False).encode().decode()):
        raise ValueError


@pytest.mark.parametrize(
    ("value", "path", "what"),
    [
        ({"a": [1, {"b": "half \ud83d"}]}, "a[1].b", "half of a surrogate pair"),
        ({"a": [{"\0": 1}]}, "a[0]", "not allowed in a name"),
        ({"a": {"\udc00": 1}}, "a", "half of a surrogate pair"),
        ([2**63], "[0]", "more than 64 bits"),
        ({"a": -(2**63) - 1}, "a", "more than 64 bits"),
        ({"a": [math.inf]}, "a[0]", "inf is no JSON"),
        ("\0", "", "the value contains the character"),
        ({"a": {1: 2}}, "a", "not a text"),
        (nested(MAX_DEPTH + 1), "a[0].a", "more than 64 levels deep"),
        ({"x" * 300: "\0"}, "x" * 199 + "…", "contains"),
    ],
)
def test_a_problem_has_its_path(value: Any, path: str, what: str) -> None:
    problem = problem_of(value)
    assert problem is not None
    assert problem.path.startswith(path)
    assert what in str(problem)


def test_texts_of_a_conversation_may_contain_nul_but_names_may_not() -> None:
    assert problem_of({"content": ["a\0b"]}, with_nul=True) is None
    name = problem_of({"content": [{"a\0b": 1}]}, with_nul=True)
    assert name is not None
    assert (name.path, "not allowed in a name" in name.what) == ("content[0]", True)
    half = problem_of({"content": ["\0 half \ud83d"]}, with_nul=True)
    assert half is not None
    assert "half of a surrogate pair" in half.what


def test_bounds_are_exact() -> None:
    assert problem_of([2**63 - 1, -(2**63), nested(MAX_DEPTH - 1), "\U0001f600"]) is None
    assert problem_of(nested(MAX_DEPTH)) is None
    assert problem_of({"inner": 2**70}, "outer").path == "outer.inner"  # type: ignore[union-attr]  # there is one
