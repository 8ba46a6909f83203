"""The OpenEnv adapter against the package's own server, where OPENENV_PYTHON names a Python that has it (openenv 0.10.0)."""

import base64
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from shared.images.decode import decode
from shared.processes.mongod import free_port
from tests.sampler.boxes import PATIENCE_S
from tests.sampler.environments.services import Service, service

PYTHON = os.environ.get("OPENENV_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="OPENENV_PYTHON, a Python with openenv, is not set")


@contextmanager
def counting(sessions: int, python: str = PYTHON, step_s: float = 60) -> Iterator[Service]:
    port = free_port()
    server = subprocess.Popen([python, Path(__file__).parent / "openenv_server.py", str(port), str(sessions)])
    try:
        end = time.monotonic() + PATIENCE_S
        while not _answers(f"http://127.0.0.1:{port}/health"):
            assert time.monotonic() < end
            time.sleep(0.1)  # another process: it says by its answer alone that it is up
        flags = (
            "--workers",
            "1",
            "--step_s",
            str(step_s),
            "--worker_python",
            python,
            "--environments",
            f"count=openenv:http://127.0.0.1:{port}",
        )
        with service(*flags) as found:
            yield found
    finally:
        server.kill()
        server.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def act(one: Service, session: dict[str, str], arguments: str) -> httpx.Response:
    call = {"id": "c1", "type": "function", "function": {"name": "act", "arguments": arguments}}
    reply = {"role": "assistant", "content": "", "tool_calls": [call]}
    return one.http.post("/interact", json={"messages": [reply]}, headers=session)


def test_a_server_is_played_by_its_own_schema_in_sessions_of_their_own() -> None:
    with counting(2) as one:
        session, step = one.start("count", 7)
        other, _ = one.start("count", 70)
        assert json.loads(step["messages"][0]["content"]) == {"text": "count on from 7"}
        (tool,) = step["tools"]
        assert tool["function"]["parameters"]["properties"].keys() == {"number"}
        assert act(one, other, '{"number": 71}').json()["reward"] == 1.0
        right = act(one, session, '{"number": 8}').json()
        assert (right["reward"], right["messages"][0]["role"]) == (1.0, "tool")
        wrong = act(one, session, '{"digit": 8}').json()
        assert (wrong["status"], wrong["reward"], "number" in wrong["messages"][0]["content"]) == ("running", 0.0, True)
        assert one.say(session, "nine").json()["messages"][0]["content"] == "Call the tool act."
        end = act(one, session, '{"number": 5}').json()
        assert (end["status"], end["reward"]) == ("completed", 0.0)


def test_a_screenshot_of_the_packages_server_is_an_image() -> None:
    with counting(1) as one:
        _, step = one.start("count", 7, reset={"pictures": True}, image_fields=["screenshot"])
    text, image = step["messages"][0]["content"]
    assert json.loads(text["text"]) == {"text": "count on from 7"}
    file = base64.b64decode(image["image_url"]["url"].partition(",")[2])
    assert np.array_equal(decode(file, "image").rgb_HW3, np.full((30, 40, 3), (7, 0, 255), np.uint8))


def test_calls_side_by_side_are_all_run() -> None:
    with counting(1) as one:
        session, _ = one.start("count", 7)
        arguments = ('{"number": 8}', '{"number": 9}', '{"number": 10}')
        calls = [
            {"id": f"c{k}", "type": "function", "function": {"name": "act", "arguments": given}}
            for k, given in enumerate(arguments)
        ]
        reply = {"role": "assistant", "content": "", "tool_calls": calls}
        end = one.http.post("/interact", json={"messages": [reply]}, headers=session).json()
        assert (end["status"], end["reward"]) == ("completed", 2.0)
        assert ["was not run" in message["content"] for message in end["messages"]] == [False, False, True]


def test_a_full_server_is_busy_and_a_broken_one_is_a_failure() -> None:
    with counting(1) as one:
        session, _ = one.start("count", 1)
        full = one.http.post("/start_sample", json={"name": "count", "index": 2})
        assert (full.status_code, "CAPACITY_REACHED" in full.text) == (406, True)
        broken = act(one, session, '{"number": -1}')
        assert (broken.status_code, "the counter is broken" in broken.text) == (500, True)
        end = time.monotonic() + PATIENCE_S
        while one.http.post("/start_sample", json={"name": "count", "index": 2}).status_code != 200:
            assert time.monotonic() < end, "its session was closed, and has left room"
            time.sleep(0.1)  # another process


def test_a_step_that_does_not_come_back_is_a_failure_of_its_session_and_not_the_end_of_the_worker() -> None:
    with counting(2, step_s=5) as one:
        session, _ = one.start("count", 1)
        before = one.health()["workers"].keys()
        slow = act(one, session, '{"number": -2}')
        assert (slow.status_code, "did not answer" in slow.text, "was ended" in slow.text) == (500, True, False), (
            slow.text
        )
        assert one.health()["workers"].keys() == before
