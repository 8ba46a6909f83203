"""Images of OpenEnv's observations in the forms of its environments, from a server that speaks its protocol."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from typing import Any

import numpy as np
import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from sampler.environments.adapters.openenv import OpenEnvEnvironment
from sampler.environments.checked_step import WrongStep, checked
from sampler.environments.environment import TaskRefused
from sampler.environments.pixels import image_file
from shared.images.decode import decode

RGB = np.random.default_rng(1).integers(0, 256, (40, 60, 3), np.uint8)
FILE = base64.b64encode(image_file(RGB)).decode()
OBSERVATION: dict[str, Any] = {
    "text": "the page",
    "screenshot": RGB.tolist(),  # as BrowserGym's
    "screen": RGB.reshape(-1).tolist(),  # as Atari's
    "screen_shape": [40, 60, 3],
    "png": FILE,
    "url": f"data:image/png;base64,{FILE}",
    "none": None,
    "flat": [1, 2, 3],
    "flat_shape": [2, 2],
}
SCHEMA = json.dumps({"action": {"type": "object", "properties": {"click": {"type": "integer"}}}}).encode()


def _answer(connection: ServerConnection) -> None:
    for line in connection:
        is_step = json.loads(line)["type"] == "step"
        seen = {"screenshot": OBSERVATION["screenshot"], "text": "clicked"} if is_step else OBSERVATION
        connection.send(
            json.dumps({"type": "observation", "data": {"observation": seen, "reward": 0.5, "done": False}})
        )


def _schema(connection: ServerConnection, request: Request) -> Response | None:
    if request.path != "/schema":
        return None
    return Response(HTTPStatus.OK, "OK", Headers({"Content-Length": str(len(SCHEMA))}), SCHEMA)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve(_answer, "127.0.0.1", 0, process_request=_schema) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        serving.join()


@contextmanager
def opened(url: str, **custom: Any) -> Iterator[tuple[OpenEnvEnvironment, dict[str, Any]]]:
    with closing(OpenEnvEnvironment(url)) as world:
        yield world, checked(world.start(1, custom))


def images_of(message: dict[str, Any]) -> list[Any]:
    urls = [part["image_url"]["url"] for part in message["content"] if part["type"] == "image_url"]
    return [decode(base64.b64decode(url.partition(",")[2]), "image").rgb_HW3 for url in urls]


@pytest.mark.parametrize("name", ["screenshot", "screen", "png", "url"])
def test_an_image_is_read_in_each_form_and_stands_behind_the_text(url: str, name: str) -> None:
    with opened(url, image_fields=[name], observation_field="text", instruction="Click.") as (_, step):
        (message,) = step["messages"]
    assert message["content"][0] == {"type": "text", "text": "Click.\n\nthe page"}
    (image,) = images_of(message)
    assert np.array_equal(image, RGB)


def test_all_fields_but_the_images_are_text_and_a_call_is_answered_with_the_next_screenshot(url: str) -> None:
    names = ["screenshot", "screen", "png", "url", "none"]
    with opened(url, image_fields=names, longest_edge=30) as (world, step):
        (message,) = step["messages"]
        text = json.loads(message["content"][0]["text"])
        assert text == {"text": "the page", "flat": [1, 2, 3], "flat_shape": [2, 2]}
        assert [image.shape for image in images_of(message)] == [(20, 30, 3)] * 4
        call = {"id": "c1", "function": {"name": "act", "arguments": '{"click": 3}'}}
        (answer,) = checked(world.interact([{"role": "assistant", "content": "", "tool_calls": [call]}]))["messages"]
    assert (answer["role"], answer["tool_call_id"]) == ("tool", "c1")
    assert [part["type"] for part in answer["content"]] == ["text", "image_url"]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (["screenshots"], "image_fields is 'screenshots'; the observation has text, screenshot"),
        ("screenshot", "image_fields is 'screenshot'; expected a list of texts"),
    ],
)
def test_fields_that_are_not_there_are_refused(url: str, fields: Any, told: str) -> None:
    with pytest.raises(TaskRefused, match=told), opened(url, image_fields=fields):
        pass


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("text", "observation.text is 'the page'; expected an image in base64"),
        ("flat", r"observation.flat_shape is \[2, 2\] \(list\); expected the shape of 3 numbers"),
    ],
)
def test_a_field_that_is_no_image_is_no_step(url: str, field: str, told: str) -> None:
    with pytest.raises(WrongStep, match=told), opened(url, image_fields=[field], observation_field="text"):
        pass
