"""Ids that grow at their end share a list, and none sees what another adds."""

from hypothesis import given
from hypothesis import strategies as st

from shared.tokens.grown_ids import GrownIds

IDS = st.lists(st.integers(0, 9), max_size=4)
STEPS = st.lists(st.tuples(st.integers(0, 50), st.sampled_from(("then", "lent")), IDS), max_size=30)


@given(IDS, STEPS)
def test_what_a_value_shows_never_changes(first: list[int], steps: list[tuple[int, str, list[int]]]) -> None:
    values, expected = [GrownIds(first)], [list(first)]
    for at, step, more in steps:
        one, ids = values[at % len(values)], expected[at % len(values)]
        values.append(one.lent() if step == "lent" else one.then(more, more[:1]))
        expected.append(ids if step == "lent" else [*ids, *more, *more[:1]])
    for one, ids in zip(values, expected, strict=True):
        assert (one == ids, list(one), len(one)) == (True, ids, len(ids))


@given(IDS, IDS, st.slices(6))
def test_its_slices_are_those_of_a_list(first: list[int], more: list[int], part: slice) -> None:
    ids = GrownIds(first)
    ids.then(more)  # the list has more than `ids` shows
    assert ids[part] == first[part]
    assert [ids[at] for at in range(-len(first), len(first))] == [first[at] for at in range(-len(first), len(first))]


def test_the_owner_grows_without_a_copy_and_a_borrower_with_one() -> None:
    ids = GrownIds([1])
    grown = ids.then([2])
    assert grown._list is ids._list
    assert grown.lent().then([3])._list is not grown._list
    assert ids.then([4]) == [1, 4]
    assert grown == [1, 2]
