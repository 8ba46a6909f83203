"""A terminal's text as plain text: no escape is left, and what colors say stays apart."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampler.environments.adapters.observed import as_text
from sampler.environments.checked_step import WrongStep, plain
from sampler.environments.plain_text import plain_text

TEXTS = [
    ("|\x1b[43m\x1b[34;1mR\x1b[0m\x1b[0m:\x1b[42m_\x1b[0m:\x1b[35mG\x1b[0m|", "|[(R)]:{_}:<G>|"),  # Taxi
    ("\x1b[43m\x1b[35mG\x1b[0m\x1b[0m", "[<G>]"),  # its taxi at the destination
    ("\x1b[41mS\x1b[0mFFF", "[S]FFF"),  # FrozenLake
    ("\x1b[36mA\x1b[0m \x1b[1mB\x1b[22m \x1b[7mC\x1b[27m", "cyan[A] *B* [C]"),
    ("\x1b[31;44mA\x1b[39mB\x1b[49mC", "blue-highlight[red[A]B]C"),
    ("\x1b[38;5;196mX\x1b[m \x1b[48;2;255;0;9mY", "color-196[X] #ff0009-highlight[Y]"),
    ("\x1b[38:5:1mX\x1b[0m\x1b[38;1mZ\x1b[0m", "color-1[X]crimson[Z]"),
    ("\x1b[91mA\x1b[0m\x1b[107mB", "bright-red[A]bright-white-highlight[B]"),
    ("\x9b31mred\x9b0m", "red[red]"),
    ("\x1b[2J\x1b[Hclear\x1b[K\x1b[?25l\x1b(B\x1b=", "clear"),
    ("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "alink"),
    ("a\r\nb\rc\td\x08\x00\x07", "a\nb\nc\td"),
    ("cut \x1b[3", "cut "),
    ("cut \x1b", "cut "),
    ("é ─ 漢 \u200d", "é ─ 漢 \u200d"),
]


@pytest.mark.parametrize(("text", "seen"), TEXTS)
def test_colors_become_brackets_and_escapes_go(text: str, seen: str) -> None:
    assert plain_text(text) == seen


PIECES = st.sampled_from(
    ["\x1b[", "\x1b]", "\x9b", "m", "31", ";", "38;5", "0", "\x1b", "\\", "\x07", "\r", "a", "\n", "é", "[", "\x00"]
)


@given(st.lists(PIECES, max_size=30).map("".join) | st.text())
def test_control_characters_are_removed_and_plain_text_is_unchanged(text: str) -> None:
    seen = plain_text(text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", seen)
    assert plain_text(seen) == seen
    if not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text):
        assert seen == text


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text()
    | st.binary()
    | st.complex_numbers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.booleans(), inner, max_size=3)
    ),
)


@given(VALUES)
def test_any_observation_is_json_without_escapes_or_a_sentence(value: Any) -> None:
    try:
        seen = as_text(value)
    except WrongStep as exc:
        told = str(exc)
    else:
        told = "; expected nothing else"
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", seen)
        if not isinstance(value, str | bytes):
            json.loads(seen, parse_constant=pytest.fail)
    assert "; expected " in told


def test_sets_have_one_order_and_names_that_read_the_same_are_refused() -> None:
    assert plain("x", {"b", "a", "c"}) == ["a", "b", "c"]
    with pytest.raises(WrongStep, match="expected names that differ as texts"):
        plain("x", {1: "a", "1": "b"})
