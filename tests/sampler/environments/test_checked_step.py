"""What a world returns goes through one boundary: numbers of any package are numbers, and what is no step is told once, with its
field, what was found and what is expected; it is not played again."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampler.environments.checked_step import WrongStep, checked
from sampler.environments.environment import COMPLETED, MAX_STEP_IMAGES, Step, user_says, user_shows
from shared.documents.states import SlotStatus
from shared.store import Store
from tests.sampler.environments.playing import one_episode, registered, task_of, worlds
from tests.sampler.environments.services import Service, service
from tests.sampler.episodes import ended

TEXT = user_says("Go on.")


def png_header(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", width, height, 8, 2, 0, 0, 0)


def test_numbers_of_any_package_are_numbers_and_colors_of_a_terminal_are_brackets() -> None:
    told = checked(
        Step(
            [{"role": "user", "content": "\x1b[41ma\x1b[0m\x1b]0;title\x07b", "n": np.int64(1)}],
            reward=np.float32(0.5),  # type: ignore[arg-type]  # wrong on purpose
            metrics={"score": np.float64(1), "won": np.bool_(True), "grid": np.zeros(2), "none": None},
            result={"at": (np.int8(1), 2)},
            seat=np.int64(1),  # type: ignore[arg-type]  # wrong on purpose
            rewards={np.int64(0): Decimal("0.25"), 1: True},  # type: ignore[dict-item]  # wrong on purpose
        )
    )
    assert told["messages"] == [{"role": "user", "n": 1, "content": "[a]b"}]
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
    "NaN": (Step(TEXT, reward=float("nan")), "reward is nan; expected a finite number"),
    "beyond the square of float32": (
        Step(TEXT, reward=1e30),
        "reward is 1e+30; expected a finite number from -1.8e+19",
    ),
    "a text": (Step(TEXT, reward="1"), "reward is '1'; expected a finite number"),  # type: ignore[arg-type]  # wrong on purpose
    "an array": (Step(TEXT, reward=np.zeros(2)), "reward is array([0., 0.]) (ndarray); expected"),  # type: ignore[arg-type]  # wrong on purpose
    "an array of one": (Step(TEXT, reward=np.zeros(1)), "reward is array([0.]) (ndarray)"),  # type: ignore[arg-type]  # wrong on purpose
    "no score": (Step(TEXT, metrics={"score": "good"}), "metrics.score is 'good'; expected a finite number"),
    "another part": (
        Step([{"role": "user", "content": [{"type": "video", "video": "a.mp4"}]}]),
        "messages.0.content.0.type is 'video'; expected 'text' or 'image'",
    ),
    "a URL": (
        Step([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a.example/1,2.png"}}]}]),
        "messages.0.content.0.image_url is 'https://a.example/1,2.png'; expected a URL that begins with data:image/",
    ),
    "a path": (
        Step(user_shows({"type": "image", "image": "1.png"})),
        "messages.0.content.0.image is '1.png'; expected",
    ),
    "nothing for an image": (
        Step(user_shows({"type": "image"})),
        "messages.0.content.0.image is None; expected an array",
    ),
    "numbers beyond": (Step(user_shows(np.full((2, 2), 2.0))), "messages.0.content.0.image is array("),
    "no number": (Step(user_shows(np.full((2, 2), np.nan))), "messages.0.content.0.image is array("),
    "negative numbers": (Step(user_shows(np.full((2, 2), -1))), "messages.0.content.0.image is array("),
    "nine channels": (Step(user_shows(np.zeros((9, 9, 9), np.uint8))), "messages.0.content.0.image is array("),
    "no pixels": (Step(user_shows(np.zeros((0, 9, 3), np.uint8))), "messages.0.content.0.image is array("),
    "rows of unequal lengths": (
        Step(user_shows({"type": "image", "image": [[[1, 2, 3]] * 2, [[1, 2, 3]]]})),
        "messages.0.content.0.image is [[[",
    ),
    "a number of an array": (Step([{"role": "user", "content": np.zeros(2)}]), "messages.0.content is array("),
    "bytes": (
        Step([{"role": "user", "content": b"a"}]),
        "messages.0.content.0.image is b'a' (bytes); expected an image file (the file: ",
    ),
    "an SVG": (
        Step(user_shows(b"<svg/>")),
        "messages.0.content.0.image is b'<svg/>' (bytes); expected an image file",
    ),
    "a bomb": (Step(user_shows(png_header(30_000, 30_000))), "messages.0.content.0.image is b'\\x89PNG"),
    "an image of the system": (
        Step([{"role": "system", "content": [np.zeros((2, 2), np.uint8)]}]),
        "messages.0.role is 'system'; expected user or tool, where there are images",
    ),
    "many images": (
        Step(user_shows(*[np.zeros((2, 2), np.uint8)] * (MAX_STEP_IMAGES + 1))),
        "the number of images is 65; expected at most 64 in a step",
    ),
    "large images": (
        Step(user_shows(*[np.random.default_rng(1).integers(0, 256, (1000, 1000, 3), np.uint8)] * 3)),
        "the size of images is 9",
    ),
    "a text for messages": (Step("Go on."), "messages is 'Go on.'; expected a list of messages"),  # type: ignore[arg-type]  # wrong on purpose
    "texts for messages": (Step(["Go on."]), "messages.0 is 'Go on.'; expected a message: {'role'"),  # type: ignore[list-item]  # wrong on purpose
    "a role": (Step([{"role": "world", "content": "a"}]), "messages.0.role is 'world'; expected one of system, "),
    "no content": (Step([{"role": "user"}]), "messages.0.content is None; expected text"),
    "no message": (
        Step(),
        "messages is () (tuple); expected a message for the model, as long as the status is running",
    ),
    "a tool without a name": (Step(TEXT, tools=[{"type": "function"}]), "tools.0 is {'type': 'function'}"),
    "a seat": (Step(TEXT, seat=-1), "seat is -1; expected the number of a seat"),
    "a seat's reward": (Step(status=COMPLETED, rewards={0: None}), "rewards.0 is None"),  # type: ignore[dict-item]  # wrong on purpose
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
    with service("--workers", "1", worlds="Careless,Guess,Called,Unmade,Exact,Hashed") as found:
        yield found


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("dict", "Careless returned what is no step: the step is {'messages': "),
        ("status", "status is 'won'; expected one of running, completed"),
        ("nan", "reward is nan; expected a finite number"),
        ("image", "messages.0.content.0.image_url is 'data:image/png;base64,AAAA'; expected an image file"),
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


def test_a_world_that_is_at_its_end_at_its_start_fails_once(careless: Service) -> None:
    answer = careless.http.post(
        "/start_sample", json={"name": "careless", "index": 0, "custom_task": {"start": "ended"}}
    )
    assert (answer.status_code, answer.json()["final"], answer.json()["status"]) == (200, True, "task error")
    assert "status is 'completed'; expected running: the model has not had its turn yet" in answer.json()["result"]


def test_a_world_whose_constructor_raises_is_refused(careless: Service) -> None:
    answer = careless.http.post("/start_sample", json={"name": "unmade", "index": 0})
    assert (answer.status_code, "AssertionError: no world of this kind" in answer.text) == (422, True), answer.text


@pytest.mark.parametrize(
    ("reply", "wrong"),
    [
        ({"tool_calls": {"id": 1}}, "messages.0.tool_calls is {'id': 1} (dict); expected a list"),
        ({"tool_calls": ["x"]}, "messages.0.tool_calls.0 is 'x'; expected {'id': "),
        ({"tool_calls": [{"id": "c"}]}, "messages.0.tool_calls.0 is {'id': 'c'} (dict)"),
        ({"tool_calls": [{"function": {"name": 5}}]}, "messages.0.tool_calls.0 is "),
        ({"content": 5}, "messages.0.content is 5; expected text"),
    ],
)
def test_calls_of_another_shape_are_refused_and_their_session_goes_on(
    careless: Service, reply: dict[str, Any], wrong: str
) -> None:
    session, _ = careless.start("called")
    answer = careless.http.post("/interact", json={"messages": [{"role": "assistant", **reply}]}, headers=session)
    assert (answer.status_code, wrong in answer.json()["detail"]) == (422, True), answer.text
    assert careless.say(session, "no call").json()["status"] == "completed"


@pytest.mark.parametrize(
    ("reply", "sent"),
    [
        ("    return x", "    return x"),
        ("<think>a function</think>\n\n    return x", "    return x"),
        ("\n\n    return x\n", "    return x"),
        ("<think>    return y</think>return x", "return x"),
    ],
)
async def test_the_blanks_before_a_replys_first_line_reach_the_world(
    store: Store, careless: Service, reply: str, sent: str
) -> None:
    await registered(store, careless.url, "exact")
    await store.tasks.insert_new([task_of(store, 0, "exact")])
    async with worlds(store, [reply].__getitem__) as (resources, _):
        record, slot, _ = await ended(store, (await one_episode(store, resources))[0])
    assert (record.reward_details["result"], slot.score) == (sent, float(sent.startswith(" ")))


def test_sets_have_one_order_in_all_workers(careless: Service) -> None:
    """A world that goes through a set would otherwise be another one in each process."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    told = subprocess.run(
        [sys.executable, "-c", "print(hash('a text'))"], env=environment, capture_output=True, text=True, check=True
    )
    assert careless.start("hashed")[1]["messages"][0]["content"] == told.stdout.strip()
