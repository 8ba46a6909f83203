"""Several calls in one reply, to a server that speaks OpenEnv's protocol over its WebSocket: all are run, in their order."""

import json
import threading
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

from sampler.environments.adapters.openenv import OpenEnvEnvironment
from sampler.environments.checked_step import WrongStep, checked
from sampler.environments.environment import TaskRefused

SCHEMA = {"action": {"type": "object", "properties": {"number": {"type": "integer"}}}}
ODD: dict[int, Any] = {90: {"type": "observation"}, 91: [], 92: {"data": {"observation": "text"}}}


def _schema(connection: ServerConnection, request: Request) -> Response | None:
    if request.path != "/schema":
        return None
    body = json.dumps(SCHEMA).encode()
    return Response(HTTPStatus.OK, "OK", Headers({"Content-Length": str(len(body))}), body)


def _count(connection: ServerConnection) -> None:
    """Ends at 3; a number that is none is refused, as by OpenEnv's validation. Its reward is the number's tenth."""
    for line in connection:
        asked = json.loads(line)
        number = asked["data"].get("number", 0)
        if not isinstance(number, int):
            errors = [{"loc": ["number"], "msg": "not a number"}]
            answer: Any = {"type": "error", "data": {"code": "VALIDATION_ERROR", "message": "no", "errors": errors}}
        elif number in ODD:
            answer = ODD[number]
        else:
            seen = {"observation": {"at": number}, "reward": number / 10, "done": number == 3}
            answer = {"type": "observation", "data": seen}
        connection.send(json.dumps(answer))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(_count, "127.0.0.1", 0, process_request=_schema) as found:
        serving = threading.Thread(target=found.serve_forever)
        serving.start()
        yield found
        found.shutdown()
        serving.join()


@pytest.fixture
def world(server: Server) -> Iterator[OpenEnvEnvironment]:
    found = OpenEnvEnvironment(f"http://127.0.0.1:{server.socket.getsockname()[1]}")
    assert found.start(1, {}).tools is not None
    yield found
    found.close()


def called(world: OpenEnvEnvironment, *arguments: str, name: str = "act") -> dict[str, Any]:
    calls = [
        {"id": f"c{k}", "type": "function", "function": {"name": name, "arguments": one}}
        for k, one in enumerate(arguments)
    ]
    return checked(world.interact([{"role": "assistant", "content": "", "tool_calls": calls}]))


def test_every_call_of_a_reply_is_run_in_order_and_answered_under_its_id(world: OpenEnvEnvironment) -> None:
    step = called(world, '{"number": 1}', '{"number": ', '{"number": "x"}', '{"number": 2}')
    assert [message["tool_call_id"] for message in step["messages"]] == ["c0", "c1", "c2", "c3"]
    first, broken, refused, last = (message["content"] for message in step["messages"])
    assert (json.loads(first), json.loads(last)) == ({"at": 1}, {"at": 2})
    assert broken.startswith("The arguments are not JSON")
    assert "number" in refused
    assert (step["status"], step["reward"]) == ("running", pytest.approx(0.3))


def test_calls_after_the_worlds_end_are_told_that_they_were_not_run(world: OpenEnvEnvironment) -> None:
    step = called(world, '{"number": 3}', '{"number": 2}')
    assert (step["status"], step["reward"]) == ("completed", pytest.approx(0.3))
    assert step["messages"][1] == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": "This call was not run: the episode had ended before it.",
    }


def test_a_call_of_a_tool_that_is_not_there_does_not_reach_the_world(world: OpenEnvEnvironment) -> None:
    step = called(world, '{"number": 3}', name="look")
    assert (step["status"], step["messages"][0]["content"]) == (
        "running",
        "There is no tool 'look'. Call the tool act.",
    )


@pytest.mark.parametrize("number", ODD)
def test_an_answer_of_another_shape_is_named_with_what_was_found(world: OpenEnvEnvironment, number: int) -> None:
    with pytest.raises(WrongStep, match="; expected an object"):
        called(world, f'{{"number": {number}}}')


def test_an_unknown_field_of_the_task_is_refused(world: OpenEnvEnvironment) -> None:
    with pytest.raises(TaskRefused, match="custom_task has 'actionfield'; expected reset, action_field"):
        world.start(1, {"actionfield": "number"})
