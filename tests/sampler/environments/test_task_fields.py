"""The fields of a task's world: what a world does not know, or of another type, is refused with a sentence."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampler.environments import TaskRefused
from sampler.environments.adapters.acting import is_own
from sampler.environments.adapters.database import DatabaseEnvironment
from sampler.environments.environment import seed_of
from sampler.environments.sampler import EnvironmentTask
from sampler.environments.task_fields import OBJECT, OBJECTS, TEXT, TEXTS, VALUES, fields_of, whole
from shared.user_code.payload import own_payload_problems

KINDS = {"options": OBJECT, "say": TEXT, "show": TEXTS, "answer": VALUES, "tables": OBJECTS, "players": whole(1)}
RIGHT: dict[str, Any] = {
    "options": {"a": 1},
    "say": "x",
    "show": ["a"],
    "answer": ["a", 1, 0.5],
    "tables": [{}],
    "players": 2,
}
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def test_right_fields_are_read_and_null_is_as_if_it_were_not_there() -> None:
    assert fields_of({**RIGHT, "say": None}, **KINDS) == {k: v for k, v in RIGHT.items() if k != "say"}


@given(st.dictionaries(st.sampled_from([*KINDS, "option", "Players", "x"]), ANY))
def test_any_field_is_read_as_it_is_or_refused_with_what_is_expected(task: dict[str, Any]) -> None:
    try:
        read = fields_of(task, **KINDS)
    except TaskRefused as exc:
        told = str(exc)
    else:
        told = "; expected nothing else"
        assert read == {name: value for name, value in task.items() if value is not None}
        assert all(type(value) is type(RIGHT[name]) for name, value in read.items())
    assert "; expected " in told


@pytest.mark.parametrize(
    ("given_name", "meant"),
    [("option", "options"), ("Options", "options"), ("OPTIONS", "options"), ("player", "players"), ("shwo", "show")],
)
def test_a_slip_of_a_name_is_refused_with_the_name_that_was_meant(given_name: str, meant: str) -> None:
    with pytest.raises(TaskRefused, match=f"custom_task has '{given_name}'; .*did you mean '{meant}'"):
        fields_of({given_name: 1}, **KINDS)


@pytest.mark.parametrize("index", [-2, "-2", "first", "", " 3", "1_0", "²", "1e3", 2**63, "9" * 5000])
def test_an_index_that_is_no_seed_is_refused(index: Any) -> None:
    with pytest.raises(TaskRefused, match="expected a whole number, which is the seed, from 0 to"):
        seed_of(index)
    assert (seed_of(3), seed_of("12"), seed_of(2**63 - 1)) == (3, 12, 2**63 - 1)


@pytest.mark.parametrize(
    ("custom", "wrong"),
    [
        ({"answer": ["1"]}, "custom_task has 'answer' without a question"),
        ({"question": "?", "tables": [{}], "answer": "12"}, "answer is '12'; expected a list of texts and numbers"),
        ({"forms": "text"}, "did you mean 'form'"),
        ({"form": "xml"}, "form is 'xml'; expected one of tools, text"),
        ({"question": 5}, "question is 5; expected text"),
    ],
)
def test_a_part_of_a_task_of_a_database_is_refused(custom: dict[str, Any], wrong: str) -> None:
    with pytest.raises(TaskRefused) as refused:
        DatabaseEnvironment("train").start(0, custom)
    assert wrong in str(refused.value)
    assert is_own({"question": "?"})


@pytest.mark.parametrize(
    ("metadata", "wrong"),
    [
        ({"options": {}}, "options is no field beside environment; expected it in custom_task"),
        ({"customtask": {}}, "there is no field 'customtask'; did you mean 'custom_task'?"),
        ({"Index": 3}, "did you mean 'index'?"),
        ({"index": True}, "metadata.index"),
        ({"index": 3.5}, "metadata.index"),
        ({"custom_task": []}, "metadata.custom_task"),
    ],
)
def test_what_is_meant_for_a_world_is_not_lost_beside_it(metadata: dict[str, Any], wrong: str) -> None:
    told = list(own_payload_problems(EnvironmentTask, {"environment": "lake", **metadata}))
    assert any(wrong in one for one in told), told
    assert not list(own_payload_problems(EnvironmentTask, {"environment": "lake", "difficulty": 3, "source": "x"}))
