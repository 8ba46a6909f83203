"""Gymnasium's worlds seen as pixels, against the real package over the wire: observations, parts, rendered pictures."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from shared.images.decode import decode
from tests.sampler.environments.package_services import adapters, python_with
from tests.sampler.environments.services import Service

MODULE = "tests.sampler.environments.registered"


@pytest.fixture(scope="module")
def pixels() -> Iterator[Service]:
    own = (f"{name}={MODULE}:{name}-v0" for name in ("Picture", "Camera"))
    with adapters("gymnasium", *own, "CartPole-v1", "Blackjack-v1") as found:
        yield found


@pytest.fixture(scope="module")
def drawn() -> Iterator[Service]:
    """In a Python with pygame, which draws Gymnasium's worlds."""
    with adapters("gymnasium", "FrozenLake-v1", "CliffWalking-v1", "Taxi-v3", python=python_with("pygame")) as found:
        yield found


def shown(step: dict[str, Any]) -> tuple[list[str], list[npt.NDArray[np.uint8]]]:
    """Texts and images of the step's message."""
    (message,) = step["messages"]
    content = message["content"]
    if isinstance(content, str):
        return [content], []
    texts = [part["text"] for part in content if part["type"] == "text"]
    urls = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    return texts, [decode(base64.b64decode(url.partition(",")[2]), "image").rgb_HW3 for url in urls]


def test_an_observation_that_no_prompt_takes_as_text_is_an_image(pixels: Service) -> None:
    session, step = pixels.start("Picture")
    texts, (image,) = shown(step)
    assert texts == ["You play Picture-v0.\nReply with one action: a number from 0 to 1."]
    assert np.array_equal(image, np.full((210, 160, 3), 7, np.uint8))
    texts, (image,) = shown(pixels.say(session, "1").json())
    assert (texts, image.shape) == ([], (210, 160, 3))
    texts, images = shown(pixels.say(session, "what?").json())
    assert (len(texts), images) == (1, []), "a reply without an action costs no step, and shows no image"


def test_parts_that_are_images_stand_behind_the_text_of_the_others(pixels: Service) -> None:
    session, step = pixels.start("Camera")
    for at in range(2):
        texts, (above, wrist) = shown(step)
        assert texts[0].endswith(f'Observation: {{"at": {at}}}')
        assert texts[1:] == ["above:", "hand.wrist:"]
        assert (above.shape, wrist.shape) == ((48, 64, 3), (24, 32, 3))
        assert above[20, 8 * at].tolist() == [255, 0, 0]
        assert np.array_equal(above[::2, ::2], wrist), "floats from 0 to 1, channels first"
        step = pixels.say(session, "1").json()


@pytest.mark.parametrize(
    ("custom", "num_texts", "shapes"),
    [
        ({"show": "pixels"}, 3, [(48, 64, 3), (24, 32, 3)]),
        ({"show": ["text", "pixels"], "longest_edge": 16}, 3, [(12, 16, 3), (12, 16, 3)]),
        ({"show": "render"}, 1, [(192, 256, 3)]),
        ({"show": "render", "longest_edge": 64}, 1, [(48, 64, 3)]),
        ({"show": ["render", "pixels"]}, 3, [(48, 64, 3), (24, 32, 3), (192, 256, 3)]),
    ],
)
def test_a_task_sets_what_is_shown_and_its_size(
    pixels: Service, custom: dict[str, Any], num_texts: int, shapes: list[tuple[int, ...]]
) -> None:
    texts, images = shown(pixels.start("Camera", **custom)[1])
    assert (len(texts), [image.shape for image in images]) == (num_texts, shapes)
    assert ("Observation" in texts[0]) == ("text" in custom["show"])


def test_a_seed_shows_the_same_files(pixels: Service) -> None:
    first, again = (pixels.start("Camera", 3)[1]["messages"] for _ in range(2))
    assert first == again


def test_a_renewal_is_answered_without_images(pixels: Service) -> None:
    """They may have megabytes, and thousands of sessions are renewed each minute."""
    session, step = pixels.start("Picture")
    renewed = pixels.say(session, "").json()
    text = step["messages"][0]["content"][0]
    assert renewed["messages"] == [{"role": "user", "content": [text, {"type": "text", "text": "[image]"}]}]
    session, step = pixels.start("Blackjack-v1")
    assert pixels.say(session, "").json()["messages"] == step["messages"]


def test_a_world_that_cannot_be_rendered_here_is_refused_with_the_missing_package(tmp_path: Path) -> None:
    """Gymnasium says so at the first picture, not before."""
    (tmp_path / "pygame.py").write_text("raise ImportError('as if it were not here')")
    with adapters("gymnasium", "FrozenLake-v1", PYTHONPATH=str(tmp_path)) as service:
        answer = service.http.post("/start_sample", json={"name": "FrozenLake-v1", "custom_task": {"show": "render"}})
    assert (answer.status_code, "FrozenLake-v1 cannot be rendered in this Python" in answer.text) == (422, True)
    assert "pygame" in answer.text


def test_gymnasiums_own_worlds_are_drawn_by_pygame(drawn: Service) -> None:
    for name, size, action in (
        ("FrozenLake-v1", (256, 256, 3), "right"),
        ("CliffWalking-v1", (171, 512, 3), "up"),
        ("Taxi-v3", (326, 512, 3), "south"),
    ):
        session, step = drawn.start(name, 1, show=["text", "render"])
        texts, (before,) = shown(step)
        assert before.shape == size, name
        assert "Observation: " in texts[0]
        assert "SFFF" not in texts[0], "the drawing is an image"
        _, (after,) = shown(drawn.say(session, action).json())
        assert not np.array_equal(before, after), name
    _, (small,) = shown(drawn.start("FrozenLake-v1", 1, show="render", longest_edge=64)[1])
    assert small.shape == (64, 64, 3)
    texts, images = shown(drawn.start("FrozenLake-v1", 1)[1])
    assert (images, "[S]FFF" in texts[0]) == ([], True), "without `show` it is text"
