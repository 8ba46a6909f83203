"""Round specifications: what they mean, that everybody draws the same, and errors that name the place."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.rules.rounds import MAX_TURNS, RoundsPiece, WrongRounds, check_rounds, draw_rounds, parse_rounds

SEATS = ["A", "B", "C", "D"]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("A", [RoundsPiece(("A",))]),
        ("*", [RoundsPiece(())]),
        ("**3", [RoundsPiece((), 3, 3)]),
        (
            "A -> B -> (C/D)*2 -> *",
            [RoundsPiece(("A",)), RoundsPiece(("B",)), RoundsPiece(("C", "D"), 2, 2), RoundsPiece(())],
        ),
        ("A->B*(0..3)", [RoundsPiece(("A",)), RoundsPiece(("B",), 0, 3)]),
        ("my-own -> b_2*(1 .. 2)", [RoundsPiece(("my-own",)), RoundsPiece(("b_2",), 1, 2)]),
    ],
)
def test_a_specification_means_its_pieces(text: str, pieces: list[RoundsPiece]) -> None:
    assert parse_rounds(text) == pieces


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "at 0: found the end; expected a seat's name"),
        ("A ->", "at 4: found the end; expected a seat's name"),
        ("A -> -", 'at 5: found "-"; expected a seat\'s name'),
        ("A B", 'at 2: found "B"; expected "->", "*N" or the end'),
        ("(A/)", 'at 3: found ")"; expected a seat\'s name'),
        ("(A", 'at 2: found the end; expected ")"'),
        ("A*0", 'at 2: found "0"; expected a number from 1 on'),
        ("A*(3..1)", 'at 6: found "1"; expected a number from 3 on'),
        ("A*(1,2)", 'at 4: found ","; expected ".."'),
        ("A*(0..2)", "may have no turn at all"),
        (f"A*{MAX_TURNS} -> A", f"up to {MAX_TURNS + 1} turns"),
    ],
)
def test_an_error_names_the_place_and_what_is_expected_there(text: str, error: str) -> None:
    with pytest.raises(WrongRounds) as raised:
        parse_rounds(text)
    assert error in str(raised.value)


def test_a_seat_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(WrongRounds, match="rounds: 'E' is no seat; expected one of A, B, C, D"):
        check_rounds("A -> (B/E)", SEATS)


def test_what_is_open_is_drawn_by_the_key_alone_and_evenly() -> None:
    assert draw_rounds("A -> B*2 -> C", SEATS, "k") == ["A", "B", "B", "C"]
    text = "(A/B)*(1..3) -> *"
    drawn = [draw_rounds(text, SEATS, f"task:{k}") for k in range(2000)]
    assert drawn == [draw_rounds(text, SEATS, f"task:{k}") for k in range(2000)]
    lengths = Counter(len(order) for order in drawn)
    assert set(lengths) == {2, 3, 4}
    assert min(lengths.values()) > 550
    last = Counter(order[-1] for order in drawn)
    assert set(last) == set(SEATS)
    assert min(last.values()) > 400
    assert "".join(draw_rounds("**6", SEATS, "main:train:0:t0:3")) == "ADDBAD", "as every version draws it"


@given(st.text(alphabet="AB*()/->. 0123", max_size=30))
def test_any_text_is_drawn_or_refused(text: str) -> None:
    try:
        order = draw_rounds(text, SEATS, "k")
    except WrongRounds:
        return
    assert 0 < len(order) <= MAX_TURNS
    assert set(order) <= set(SEATS)
