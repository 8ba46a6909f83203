"""What a world returns goes through one boundary: numbers of any package are numbers, and what is no step is told once, with its
field, what was found and what is expected; it is not played again."""

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampler.environments.checked_step import WrongStep, checked
from sampler.environments.environment import COMPLETED, Step, user_says
from shared.documents.states import SlotStatus
from shared.store import Store
from tests.sampler.environments.playing import one_episode, registered, task_of, worlds
from tests.sampler.environments.services import Service, service
from tests.sampler.episodes import ended

TEXT = user_says("Go on.")


def test_numbers_of_any_package_are_numbers_and_escapes_of_a_terminal_are_left_out() -> None:
    told = checked(
        Step(
            [{"role": "user", "content": "\x1b[41ma\x1b[0m\x1b]0;title\x07b", "n": np.int64(1)}],
            reward=np.float32(0.5),  # type: ignore[arg-type]
            metrics={"score": np.float64(1), "won": np.bool_(True), "grid": np.zeros(2), "none": None},
            result={"at": (np.int8(1), 2)},
            seat=np.int64(1),  # type: ignore[arg-type]
            rewards={np.int64(0): Decimal("0.25"), 1: True},  # type: ignore[dict-item]
        )
    )
    assert told["messages"] == [{"role": "user", "n": 1, "content": "ab"}]
    assert (told["reward"], told["seat"], told["rewards"]) == (0.5, 1, {"0": 0.25, "1": 1.0})
    assert told["metrics"] == {"score": 1.0, "won": 1.0, "grid": [0.0, 0.0]}
    assert told["result"] == {"at": [1, 2]}
    assert (
        checked(Step([{"role": "user", "content": [{"type": "text", "text": "a"}] * 2}]))["messages"][0]["content"]
        == "a\na"
    )


WRONG: dict[str, tuple[Any, str]] = {
    "a dict": ({"messages": TEXT}, "the step is {'messages': "),
    "nothing": (None, "the step is None; expected a Step, of sampler.environments"),
    "an unknown status": (Step(TEXT, status="won"), "status is 'won'; expected one of running, completed, "),
    "NaN": (Step(TEXT, reward=float("nan")), "reward is nan; expected a finite number, or None"),
    "a text": (Step(TEXT, reward="1"), "reward is '1'; expected a finite number"),  # type: ignore[arg-type]
    "an array": (Step(TEXT, reward=np.zeros(2)), "reward is array([0., 0.]) (ndarray); expected"),  # type: ignore[arg-type]
    "an array of one": (Step(TEXT, reward=np.zeros(1)), "reward is array([0.]) (ndarray)"),  # type: ignore[arg-type]
    "no score": (Step(TEXT, metrics={"score": "good"}), "metrics.score is 'good'; expected a finite number"),
    "an image": (
        Step([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]),
        "messages.0.content.0.type is 'image_url'; expected 'text': a world's messages are text, images are not supported",
    ),
    "pixels": (Step([{"role": "user", "content": np.zeros((2, 2))}]), "messages.0.content is array("),
    "bytes": (Step([{"role": "user", "content": b"a"}]), "messages.0.content is b'a' (bytes); expected text"),
    "a text for messages": (Step("Go on."), "messages is 'Go on.'; expected a list of messages"),  # type: ignore[arg-type]
    "texts for messages": (Step(["Go on."]), "messages.0 is 'Go on.'; expected a message: {'role'"),  # type: ignore[list-item]
    "a role": (Step([{"role": "world", "content": "a"}]), "messages.0.role is 'world'; expected one of system, "),
    "no content": (Step([{"role": "user"}]), "messages.0.content is None; expected text"),
    "no message": (
        Step(),
        "messages is () (tuple); expected a message for the model, as long as the status is running",
    ),
    "a tool without a name": (Step(TEXT, tools=[{"type": "function"}]), "tools.0 is {'type': 'function'}"),
    "a seat": (Step(TEXT, seat=-1), "seat is -1; expected the number of a seat"),
    "a seat's reward": (Step(status=COMPLETED, rewards={0: None}), "rewards.0 is None"),  # type: ignore[dict-item]
    "an object": (Step(TEXT, result={"a": object()}), "result.a is <object object"),
    "a large number": (
        Step(TEXT, result={"a": 2**64}),
        "result.a is 18446744073709551616; expected a whole number of 64 bits",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_step_is_named_with_field_found_and_expected(what: str) -> None:
    step, said = WRONG[what]
    with pytest.raises(WrongStep) as wrong:
        checked(step)
    assert str(wrong.value).startswith(said)
    assert "; expected " in str(wrong.value)


SIMPLE = st.none() | st.booleans() | st.floats() | st.integers() | st.text()
ANYTHING = st.recursive(SIMPLE, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(ANYTHING)
def test_whatever_a_world_returns_is_a_step_or_a_sentence(value: Any) -> None:
    fields = ("tools", "reward", "metrics", "rewards", "seat", "status", "result")
    for step in (
        value,
        Step(value),
        Step([value]),
        Step([{"role": "user", "content": value}]),
        *(Step(TEXT, **{name: value}) for name in fields),
    ):
        assert said_of(step) is None or "; expected " in str(said_of(step))


def said_of(step: object) -> str | None:
    """None: it is a step, of values that JSON holds."""
    try:
        json.dumps(checked(step))
    except WrongStep as exc:
        return str(exc)
    return None


@pytest.fixture(scope="module")
def careless() -> Iterator[Service]:
    with service("--workers", "1", worlds="Careless,Guess") as found:
        yield found


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("dict", "Careless returned what is no step: the step is {'messages': "),
        ("status", "status is 'won'; expected one of running, completed"),
        ("nan", "reward is nan; expected a finite number"),
        ("image", "messages.0.content.0.type is 'image_url'; expected 'text'"),
    ],
)
async def test_an_episode_whose_world_returns_no_step_fails_once_with_one_sentence(
    store: Store, careless: Service, reply: str, said: str
) -> None:
    await registered(store, careless.url, "careless")
    await store.tasks.insert_new([task_of(store, 0, "careless")])
    async with worlds(store, [reply].__getitem__, max_failures=8) as (resources, _):
        sampler, score = await one_episode(store, resources)
        record, slot, _ = await ended(store, sampler)
    assert (score, record.score, record.termination) == (None, None, "environment_failure")
    assert (slot.status, slot.failures) == (SlotStatus.FAILED, 1), "seven more tries could not help"
    assert record.error is not None
    assert said in record.error
    session, step = careless.start("guess", 1)
    assert (step["status"], careless.say(session, "1").json()["reward"]) == ("running", 1.0), "its worker goes on"


async def test_an_opening_that_is_no_step_fails_once_and_a_world_that_raises_is_tried_again(
    store: Store, careless: Service
) -> None:
    await registered(store, careless.url, "careless")
    wrong, raising = ({"start": how} for how in ("wrong", "raise"))
    await store.tasks.insert_new(
        [task_of(store, 0, "careless", custom_task=wrong), task_of(store, 1, "careless", custom_task=raising)]
    )
    async with worlds(store, "{}".format, max_failures=8) as (resources, _):
        record, slot, _ = await ended(store, (await one_episode(store, resources))[0])
        assert (slot.status, record.error is not None and "careless returned what is no step" in record.error) == (
            SlotStatus.FAILED,
            True,
        )
        record, slot, _ = await ended(store, (await one_episode(store, resources))[0])
    assert (slot.status, slot.failures) == (SlotStatus.OPEN, 1)
