"""Which action a reply names: read exactly, or refused with what was found and which actions there are."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampler.environments import TaskRefused
from sampler.environments.adapters.named_action import NumberedActions, TextActions, Unread, action_names

FIVE = NumberedActions(0, 5)
SIGNED = NumberedActions(-1, 3)
MANY = NumberedActions(0, 2000)
LAKE = NumberedActions(0, 4, ("left", "down", "right", "up"))
CASES = NumberedActions(0, 2, ("a", "A"))
TENS = NumberedActions(0, 3, ("10", "2", "1"))

READ: list[tuple[NumberedActions, str, int]] = [
    *[(FIVE, said, 3) for said in ("3", "3.", "3.0", "3e0", "**3**", "`3`", "[3]", "(3)", "#3", "+3", "\n 3 \n", "３")],
    *[(FIVE, said, 3) for said in ("I choose 3 (confidence 0.9)", "action: 3", "The action is 3.", "Option 3!")],
    *[(FIVE, said, 3) for said in ('{"action": 3}', "I might take 4.\nSo I choose 3", "<action>3</action> and not 4")],
    *[(FIVE, said, 2) for said in ("2.0", "<action> 2.0 </action>", "<ACTION>2</ACTION>", "20e-1", "0.2e1")],
    (FIVE, "1e0", 1),
    *[(SIGNED, said, -1) for said in ("−1", "-1", "–1", "－1", "I choose −1.", "<action>−1.0</action>")],
    *[(SIGNED, said, 1) for said in ("1", "+1", "1.")],
    *[(MANY, said, 1234) for said in ("1,234", "1'234", "1\u202f234", "1.234e3", "I choose 1,234.")],
    *[(LAKE, said, 1) for said in ("down", "I go DOWN.", "Let's move down!", "**Down**", "Left is a hole. I go down.")],
    (LAKE, "<action>2</action> and not left", 2),
    (CASES, "A", 1),
    (CASES, "a", 0),
    (TENS, "1", 2),
    (TENS, "2", 1),
]
UNREAD: list[tuple[NumberedActions, str]] = [
    *[
        (FIVE, said)
        for said in ("", " ", "2.5", "3/4", "3-1", "1:2", "3rd", "3²", "3%", "1,2", "3 or 4", "not 3", "minus 3")
    ],
    *[(FIVE, said) for said in ("3 4", "03:00", "−1", "5", "1e9", "9" * 100_000, "three", "0x3", "1_0", "NaN", "inf")],
    *[
        (FIVE, said)
        for said in ("I choose 3 (or 4)", "<action>3", "<action></action>", "<action>3 or 4</action>", "3?")
    ],
    *[(SIGNED, said) for said in ("- 1", "minus 1", "negative 1", "1-", "±1", "2", "1 - 1")],
    *[(MANY, said) for said in ("1 234", "1.234", "12,34", "1,2345", "1,234,567", "2000")],
    *[
        (LAKE, said)
        for said in ("I give up", "what is left", "Left or right", "left, then right", "up?", "leftover", "no, up")
    ],
    *[
        (LAKE, said)
        for said in (
            "l\u0435ft",
            "left-down",
            "le\u00adft",
            "I go left. No, wait.",
            "go left (or right)",
            "do not go up",
        )
    ],
    *[
        (LAKE, said)
        for said in ("<action>left</action><action>up</action>", "<action>I go left</action>", "Action 2: left", "4")
    ],
    (TENS, "0"),
    (TENS, "10.0"),
]


@pytest.mark.parametrize(("actions", "said", "number"), READ)
def test_a_reply_that_names_an_action_is_that_action(actions: NumberedActions, said: str, number: int) -> None:
    assert actions.read(said) == number


@pytest.mark.parametrize(("actions", "said"), UNREAD)
def test_an_ambiguous_reply_names_no_action_and_its_answer_lists_the_actions(
    actions: NumberedActions, said: str
) -> None:
    with pytest.raises(Unread) as unread:
        actions.read(said)
    refusal = str(unread.value)
    assert (
        len(refusal) < 2500,
        refusal.startswith("The reply has 2 actions") or "Reply with one action: " in refusal,
    ) == (
        True,
        True,
    )


NAMES = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=8)


@given(NAMES)
def test_each_action_is_read_by_its_own_name(names: list[str]) -> None:
    """Of whatever names a task gives: they are refused, or each is read as itself."""
    try:
        actions = NumberedActions(5, len(names), action_names(names, len(names)))
    except TaskRefused:
        return
    for k, name in enumerate(names):
        assert actions.read(f"<action>{name}</action>") == 5 + k


@given(st.integers(-50, 50), st.integers(1, 3000), st.integers(-60, 3100))
def test_each_way_to_write_a_number_is_that_number_or_none(first: int, count: int, number: int) -> None:
    actions = NumberedActions(first, count)
    for said in (
        f"{number}",
        f"{number}.0",
        f"{number:,}",
        f"{number}e0",
        f"{number}".replace("-", "−"),
        f"I choose {number}",
    ):
        try:
            assert actions.read(said) == number
        except Unread:
            assert not first <= number < first + count


def refusal_of(actions: NumberedActions | TextActions, said: str) -> str:
    """Why a reply is no action; empty: it is one."""
    try:
        actions.read(said)
    except Unread as exc:
        return str(exc)
    return ""


@given(st.text(), st.sampled_from([FIVE, SIGNED, LAKE, CASES]))
def test_any_text_is_an_action_or_a_sentence(text: str, actions: NumberedActions) -> None:
    for said in (text, f"<action>{text}</action>", f"I choose {text}"):
        refusal = refusal_of(actions, said)
        assert refusal == "" or "expected one" in refusal or "Reply with one action" in refusal


@given(st.text(alphabet="abC \n\té<>/", max_size=20))
def test_a_text_action_is_what_the_model_wrote(text: str) -> None:
    anything = TextActions(lambda one: True, "any text")
    assert anything.read(text) == text
    assert anything.read(f"So: <action>{text}</action>.") == text
    unblank = TextActions(lambda one: bool(one) and one == one.strip(), "a text without blanks around it")
    said = f"<action>{text}</action>"
    assert "expected a text without blanks" in refusal_of(unblank, said) or unblank.read(said) == text.strip()


@pytest.mark.parametrize("piece", ["<action>", "(", "i go ", "left. ", "(left ", "<action></action>", "1,", "\n"])
def test_long_replies_cost_no_more_than_their_length(piece: str) -> None:
    begun = time.process_time()
    with pytest.raises(Unread):
        LAKE.read(piece * 200_000 + "x")
    assert time.process_time() - begun < 20, "by pairs of marks it would take an hour"


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        (["a"], "actions has 1 names; expected 2, one for each action"),
        (["a", "a"], "actions.1 is 'a' again; expected 2 different names, not a, a"),
        (["a b", "a  b"], "actions.1 is 'a  b' again"),
        (["é", "e\u0301"], "again; expected 2 different names"),
        (["a", ""], "actions.1 is ''; expected a name with a letter or a digit"),
        (["a", " . "], "expected a name with a letter or a digit"),
    ],
)
def test_ambiguous_names_of_actions_are_refused(names: list[Any], wrong: str) -> None:
    with pytest.raises(TaskRefused) as refused:
        action_names(names, 2)
    assert wrong in str(refused.value)
