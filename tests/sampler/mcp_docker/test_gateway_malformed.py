"""Messages of wrong types from either side, and clients that choose what the gateway remembers."""

import asyncio
import os
import socket
import sys
from pathlib import Path
from types import ModuleType

import pytest
from mcp import Client

from sampler.mcp_docker.requests.client_profile import MAX_CAPABILITIES_CHARS
from sampler.mcp_docker.sessions.sessions import MAX_PROFILES, Sessions
from sampler.mcp_docker.starting.tool_set import Profile
from shared.forks.tools import ToolForks
from shared.sandbox.warden import Specification
from shared.sandbox.watch import Bounds
from tests.sampler.mcp_docker.gateways import TOOL_SERVERS, RawClient, gateway

MALFORMED = {"malformed": {"command": sys.executable, "args": [str(TOOL_SERVERS / "malformed.py")]}}


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_server_whose_notifications_have_wrong_types_goes_on(tmp_path: Path, mode: str) -> None:
    with gateway(tmp_path, MALFORMED) as started:
        async with Client(f"{started.url}/mcp", mode=mode, read_timeout_seconds=60) as client:
            for _ in range(2):
                result = await client.call_tool("say", {})
                assert result.content[0].text == "said"  # type: ignore[union-attr]  # it is there
        assert "Traceback" not in started.log.read_text()


async def test_an_error_of_a_server_over_stdio_is_its_own_answer_whatever_its_code(tmp_path: Path) -> None:
    with gateway(tmp_path, MALFORMED, "--warm_sessions", "0") as started:
        client = RawClient(started)
        await client.open()
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "refuse", "arguments": {}}}
        answer = await client.post(call)
        assert (answer.status_code, answer.json()["error"]["code"]) == (200, -32700), answer.text
        older = await client.http.post("/mcpapi/tool/malformed.refuse", json={})
        assert older.status_code != 502, older.text
        await client.close()


async def test_a_client_that_cancels_what_cannot_be_an_id_is_told_nothing_and_goes_on(tmp_path: Path) -> None:
    with gateway(tmp_path) as started:
        client = RawClient(started)
        await client.open()
        for wrong in ([1], {}, None, 1.5, True, "x" * 10_000):
            body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": wrong}}
            answer = await client.http.post("/mcp", json=body, headers=client.headers)
            assert answer.status_code == 202, answer.text
        assert (await client.call("echo", 1, text="here"))["result"]["content"][0]["text"] == "here"
        await client.close()
        assert "Traceback" not in started.log.read_text()


async def test_capabilities_beyond_their_bound_are_refused(tmp_path: Path) -> None:
    with gateway(tmp_path) as started:
        client = RawClient(started)
        capabilities = {"experimental": {"id": {"x": "y" * MAX_CAPABILITIES_CHARS}}}
        params = {
            "protocolVersion": "2025-06-18",
            "capabilities": capabilities,
            "clientInfo": {"name": "t", "version": "1"},
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        async with client.http as http:
            answer = await http.post("/mcp", json=body, headers=client.headers)
        assert answer.status_code == 400
        assert "expected at most" in answer.json()["error"]["message"]


async def test_a_bounded_number_of_profiles_is_remembered() -> None:
    sessions = Sessions(None, None)  # type: ignore[arg-type]  # neither is used here
    kept = [sessions.offers(Profile(str(number))) for number in range(MAX_PROFILES + 1)]
    assert sessions.offers(Profile(str(MAX_PROFILES))) is kept[-1]
    assert sessions.offers(Profile("1")) is kept[1]
    assert sessions.offers(Profile("0")) is not kept[0]


async def test_an_episode_whose_first_request_was_cancelled_is_forgotten_at_its_end() -> None:
    """Its session is opened all the same, and ends with its lease."""
    opened, opening = [], asyncio.Event()

    class Opening(Sessions):
        async def open(self, *given: object) -> object:  # type: ignore[override]  # of fewer arguments
            await opening.wait()
            opened.append(type("Session", (), {"episode": None, "has_ended": False})())
            return opened[-1]

    sessions = Opening(None, None)  # type: ignore[arg-type]  # neither is used
    first = asyncio.create_task(sessions.of_episode("e"))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    opening.set()
    assert await sessions.of_episode("e") is opened[0]
    assert [session.episode for session in opened] == ["e"]


def test_a_fork_that_fails_is_reported_as_the_end_of_that_session_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def refused() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refused)
    with ours, theirs:
        loop = ToolForks(theirs, {"tool": ModuleType("tool")}, lambda module: None)
        specification = Specification("/", Bounds(1, 1, 1, 1, 1), [], None, []).text()
        loop.start({"start": 7, "module": "tool", "specification": specification}, [])
        loop.report()
        assert b'"ended": 7' in ours.recv(1000)
    assert "cannot be forked" in capfd.readouterr().err
