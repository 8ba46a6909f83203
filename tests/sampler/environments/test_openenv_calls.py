"""Several calls in one reply, to a server that speaks OpenEnv's protocol over its WebSocket: all are run, in their order."""

import asyncio
import json
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import pytest
from websockets.asyncio.server import serve as async_serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.client import connect as open_connection
from websockets.sync.server import Server, ServerConnection, serve

from sampler.environments.adapters.openenv import OpenEnvEnvironment
from sampler.environments.checked_step import WrongStep, checked
from sampler.environments.environment import TaskRefused
from tests.sampler.boxes import PATIENCE_S

SCHEMA = {"action": {"type": "object", "properties": {"number": {"type": "integer"}}}}
SEEN = {"observation": {"at": 1}, "reward": 0.5, "done": False}
# Answers to a number's step, and what is said of each.
ODD: dict[int, tuple[Any, str]] = {
    90: ({"type": "observation"}, "expected an object with the object 'data'"),
    91: ([], "to step is [] (list); expected an object with the object 'data'"),
    92: ({"data": {"observation": "text"}}, "observation is 'text'; expected an object"),
    93: ({"data": {}}, "observation is None; expected an object"),
    94: ({"data": {**SEEN, "observation": []}}, "observation is [] (list); expected an object"),
    95: ({"data": {**SEEN, "reward": "1"}}, "reward is '1'; expected a finite number"),
    96: ({"data": {**SEEN, "reward": float("nan")}}, "reward is nan; expected a finite number"),
    97: ({"data": {**SEEN, "reward": [1]}}, "reward is [1] (list); expected a finite number"),
    98: ({"data": {**SEEN, "done": "no"}}, "done is 'no'; expected True or False"),
    99: ("no JSON", "to step is 'no JSON'; expected JSON"),
    100: ({"data": {**SEEN, "observation": {"pixels": [0] * 1001}}}, "an observation of 1,001 numbers"),
}


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
            answer = ODD[number][0]
        elif asked["type"] == "reset":
            answer = {
                "data": {
                    **SEEN,
                    "observation": {"at": 0, "log": "\x1b[31mred\x1b[0m"},
                    "done": asked["data"]["seed"] == 666,
                }
            }
        else:
            seen = {"observation": {"at": number}, "reward": number / 10, "done": number == 3}
            answer = {"type": "observation", "data": seen}
        connection.send(answer if isinstance(answer, str) else json.dumps(answer))


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
    with pytest.raises(WrongStep) as wrong:
        called(world, f'{{"number": {number}}}')
    assert ODD[number][1] in str(wrong.value)


@pytest.mark.parametrize("arguments", ["[1]", "3", "null", '{"number": NaN}', "[" * 100_000])
def test_arguments_that_are_no_object_do_not_reach_the_world(world: OpenEnvEnvironment, arguments: str) -> None:
    step = called(world, arguments)
    assert (step["status"], step["reward"]) == ("running", 0.0)
    assert step["messages"][0]["content"].startswith("The arguments are ")


@pytest.mark.parametrize(
    ("index", "custom", "wrong"),
    [
        (1, {"actionfield": "number"}, "custom_task has 'actionfield'; expected reset, action_field"),
        (1, {"action_field": "numbr"}, "action_field is 'numbr'; expected number; did you mean 'number'?"),
        (1, {"observation_field": "text"}, "observation_field is 'text'; the observation has at, log"),
        (1, {"reset": {"seed": 3}}, "reset has 'seed'; expected none: the index is the seed"),
        (1, {"reset": "x"}, "reset is 'x'; expected an object"),
        (-2, {}, "index is -2; expected a whole number"),
    ],
)
def test_what_a_server_does_not_have_is_refused(
    world: OpenEnvEnvironment, index: int, custom: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(TaskRefused) as refused:
        world.start(index, custom)
    assert wrong in str(refused.value)


def test_a_world_that_is_at_its_end_at_its_reset_is_no_world(world: OpenEnvEnvironment) -> None:
    with pytest.raises(WrongStep, match="done of the answer to reset is True; expected false"):
        world.start(666, {})


def test_texts_of_an_observation_are_plain(world: OpenEnvEnvironment) -> None:
    assert world.start(1, {}).messages[0]["content"] == '{"at": 0, "log": "red[red]"}'
    assert world.start(1, {"observation_field": "log"}).messages[0]["content"] == "red[red]"


def test_a_proxy_does_not_stand_between(world: OpenEnvEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert world.start(1, {}).tools is not None


def test_a_step_may_take_longer_than_a_connections_keep_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with OpenEnv's server, whose step holds its event loop, so that it answers no ping. A keep-alive of 0.2 s stands for the
    usual one of 20 s, a step of 1 s for one of 41 s."""
    monkeypatch.setattr("websockets.sync.client.connect", _connect_with_short_keep_alive)
    with _blocking_server() as port:
        world = OpenEnvEnvironment(f"http://127.0.0.1:{port}")
        world.start(1, {"action_field": "text"})
        step = checked(world.interact([{"role": "assistant", "content": "wait"}]))
        world.close()
    assert (step["status"], step["reward"]) == ("running", 0.5)


def _connect_with_short_keep_alive(uri: str, **given: Any) -> Any:
    usual = {"ping_interval": 20.0, "ping_timeout": 20.0}
    short = {name: None if given.get(name, s) is None else given.get(name, s) / 100 for name, s in usual.items()}
    return open_connection(uri, **{**given, **short})


@contextmanager
def _blocking_server() -> Iterator[int]:
    async def answered(connection: Any) -> None:
        async for line in connection:
            if json.loads(line)["type"] == "step":
                time.sleep(1.0)  # noqa: ASYNC251 - it holds the event loop on purpose
            await connection.send(json.dumps({"data": SEEN}))

    async def run() -> None:
        async with async_serve(answered, "127.0.0.1", 0) as found:
            ports.put(found.sockets[0].getsockname()[1])
            loops.put((asyncio.get_running_loop(), stop))
            await stop.wait()

    ports, loops, stop = queue.Queue[int](), queue.Queue[Any](), asyncio.Event()
    serving = threading.Thread(target=lambda: asyncio.run(run()))
    serving.start()
    try:
        yield ports.get(timeout=PATIENCE_S)
    finally:
        loop, ending = loops.get(timeout=PATIENCE_S)
        loop.call_soon_threadsafe(ending.set)
        serving.join()
