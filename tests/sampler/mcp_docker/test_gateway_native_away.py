"""Servers of 2026-07-28 by URL whose connections break, and that are away for a moment: there is no session to lose."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.processes.mongod import free_port
from tests.sampler.mcp_docker.gateways import PATIENCE_S, RawClient, gateway
from tests.sampler.mcp_docker.modern_client import REVISION, ModernClient, message_of

pytestmark = pytest.mark.slow
SCRIPTED = Path(__file__).parent / "scripted_native_http.py"
SERVER_GONE = -32500


@contextmanager
def odd(port: int, *habits: str) -> Iterator[dict[str, Any]]:
    """The server; its entry."""
    process = subprocess.Popen([sys.executable, str(SCRIPTED), str(port), *habits])
    try:
        ends_at = time.monotonic() + PATIENCE_S
        while time.monotonic() < ends_at and process.poll() is None:
            try:
                told(port)
                break
            except httpx.HTTPError:
                time.sleep(0.1)
        yield {"odd": {"url": f"http://127.0.0.1:{port}/mcp", "revision": REVISION}}
    finally:
        process.kill()
        process.wait()


def told(port: int, path: str = "told") -> dict[str, int]:
    found: dict[str, int] = httpx.get(f"http://127.0.0.1:{port}/{path}", timeout=PATIENCE_S).json()
    return found


async def until_told(port: int, what: str, least: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while told(port).get(what, 0) < least:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)


async def called(raw: RawClient, name: str, number: int = 1) -> httpx.Response:
    params = {"name": name, "arguments": {}}
    return await raw.post({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})


def is_away(response: httpx.Response) -> bool:
    error = message_of(response).get("error", {})
    return response.status_code == 502 and error["code"] == SERVER_GONE and "'odd'" in error["message"]


async def test_a_server_that_was_away_for_a_moment_is_found_again(tmp_path: Path) -> None:
    """Its changes are listened to in the background, and that fails while it is away."""
    port = free_port()
    with ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        entry = first.enter_context(odd(port, "changes"))
        started = stack.enter_context(gateway(tmp_path, entry, "--warm_sessions", "0"))
        raw, modern = RawClient(started), ModernClient(started, "run/away")
        await raw.open()
        assert "result" in await raw.call("ok")
        assert (await modern.call("ok"))["content"][0]["text"] == "ok"
        first.close()
        for _ in range(3):
            assert is_away(await called(raw, "ok"))
            assert is_away(await modern.post("tools/call", name="ok", arguments={}))
            await asyncio.sleep(1)  # the stream is opened again after 1 s, then 2
        response = await raw.post({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}})
        assert is_away(response)
        assert "ConnectError" in response.text
        stack.enter_context(odd(port, "changes"))
        assert "result" in await raw.call("ok")
        assert (await modern.call("ok"))["content"][0]["text"] == "ok"
        await until_told(port, "subscriptions/listen", 2)
        await raw.close()
        await modern.close()


@pytest.mark.parametrize("name", ["reset", "half", "cut"])
async def test_a_broken_connection_is_the_end_of_one_call(tmp_path: Path, name: str) -> None:
    port = free_port()
    with odd(port) as entry, gateway(tmp_path, entry, "--warm_sessions", "0") as started:
        raw = RawClient(started)
        await raw.open()
        slow = asyncio.create_task(called(raw, "slow", 1))
        await until_told(port, "slow_began", 1)
        broken = await called(raw, name, 2)
        assert is_away(broken), broken.text
        assert "ExceptionGroup" not in broken.text
        told(port, "go")
        assert message_of(await slow)["result"]["content"][0]["text"] == "slow"
        assert "result" in await raw.call("ok", 3)
        await raw.close()


async def test_an_answer_that_breaks_off_is_a_failure_of_the_server_also_after_a_handshake(tmp_path: Path) -> None:
    """Where the SDK answers before it sees the end of the session."""
    port = free_port()
    with odd(port, "cut-lists") as entry, gateway(tmp_path, of(entry, "handshake"), "--warm_sessions", "0") as started:
        raw = RawClient(started)
        await raw.open()
        listed = await raw.post({"jsonrpc": "2.0", "id": 3, "method": "tools/list", "params": {}})
        assert is_away(listed), listed.text
        await raw.close()
    port = free_port()
    with odd(port) as entry, gateway(tmp_path, of(entry, "handshake"), "--warm_sessions", "0") as started:
        raw = RawClient(started)
        await raw.open()
        assert "result" in await raw.call("ok")
        broken = await called(raw, "cut", 2)
        assert is_away(broken), broken.text
        await raw.close()


def of(entry: dict[str, Any], revision: str) -> dict[str, Any]:
    return {name: fields | {"revision": revision} for name, fields in entry.items()}


async def test_a_question_that_is_no_longer_awaited_gives_its_connection_back(tmp_path: Path) -> None:
    port = free_port()
    flags = ("--warm_sessions", "0", "--call_s", "1", "--max_parallel_calls", "1")
    with odd(port, "no-lists") as entry, gateway(tmp_path, entry, *flags) as started:
        raw = RawClient(started)
        await raw.open()
        for number in range(6):
            response = await raw.post({"jsonrpc": "2.0", "id": number, "method": "tools/list", "params": {}})
            assert response.status_code == 504, response.text
        found = told(port)
        assert found["most_held"] <= 3, found
        await raw.close()


async def test_a_call_with_outdated_headers_is_repeated_once_with_new_ones(tmp_path: Path) -> None:
    """The server refuses such a call before it executes it."""
    port = free_port()
    with odd(port) as entry, gateway(tmp_path, entry, "--warm_sessions", "0") as started:
        raw, modern = RawClient(started), ModernClient(started, "run/stale")
        await raw.open()
        callers = [lambda: called(raw, "stale"), lambda: modern.post("tools/call", name="stale", arguments={})]
        for call in callers:
            assert "result" in message_of(await call())
            before = told(port, "stale")
            assert message_of(await call())["result"]["content"][0]["text"] == "stale"
            after = told(port)
            assert after["tools/list"] == before["tools/list"] + 1
            assert after["stale_calls"] == before["stale_calls"] + 2
            for _ in range(2):
                told(port, "stale")
            assert is_away(await call())
            assert told(port)["stale_calls"] == after["stale_calls"] + 2
            assert "result" in message_of(await call())
        await raw.close()
        await modern.close()


async def test_an_older_api_call_with_outdated_headers_is_repeated_too(tmp_path: Path) -> None:
    port = free_port()
    with odd(port) as entry, gateway(tmp_path, entry, "--warm_sessions", "0") as started:
        async with httpx.AsyncClient(base_url=started.url, timeout=PATIENCE_S) as http:
            assert (await http.post("/mcpapi/tool/odd.stale", json={})).json() == {"content": "stale"}
            told(port, "stale")
            assert (await http.post("/mcpapi/tool/odd.stale", json={})).json() == {"content": "stale"}
            for _ in range(2):
                told(port, "stale")
            assert (await http.post("/mcpapi/tool/odd.stale", json={})).status_code == 502


def rpc_error(code: int) -> str:
    return f'{{"jsonrpc":"2.0","id":ID,"error":{{"code":{code},"message":"of the server"}}}}'


JSON, HTML = "application/json", "text/html"
NO_ANSWERS = [  # status, content type, body
    ("503 Service Unavailable", HTML, "<h1>come back later</h1>"),
    ("500 Internal Server Error", JSON, rpc_error(-32603)),
    ("504 Gateway Timeout", "text/event-stream", "data: late"),
    ("401 Unauthorized", HTML, "log in"),
    ("403 Forbidden", JSON, rpc_error(-32600)),
    ("404 Not Found", HTML, "no such page"),
    ("400 Bad Request", JSON, '{"detail": "no"}'),
    ("302 Found", HTML, "log in there"),
    ("202 Accepted", HTML, ""),
    ("200 OK", HTML, "<h1>log in</h1>"),
    ("200 OK", JSON, '{"detail": "maintenance"}'),
    ("200 OK", JSON, '{"jsonrpc":"2.0","id":ID,"result":7}'),
    ("200 OK", JSON, "{"),
]


@pytest.mark.parametrize("revision", [REVISION, "handshake"])
async def test_what_is_no_answer_of_the_server_is_a_failure_of_infrastructure(tmp_path: Path, revision: str) -> None:
    port = free_port()
    with odd(port) as native, gateway(tmp_path, of(native, revision), "--warm_sessions", "0") as started:
        raw, modern = RawClient(started), ModernClient(started, "run/page")
        await raw.open()
        for status, kind, body in NO_ANSWERS:
            params = {"name": "page", "arguments": {"status": status, "kind": kind, "body": body}}
            for response in (
                await raw.post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}),
                await modern.post("tools/call", **params),
            ):
                assert is_away(response), (status, body, response.status_code, response.text)
            if not status.startswith("200"):
                assert status.split()[0] in response.text
        own = [("404 Not Found", -32601), *([("200 OK", -32700)] if revision == "handshake" else [])]
        for status, code in own:
            params = {"name": "page", "arguments": {"status": status, "kind": JSON, "body": rpc_error(code)}}
            answered = await raw.post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
            assert (answered.status_code, answered.json()["error"]["code"]) == (200, code)
        assert "result" in await raw.call("ok")
        await raw.close()
        await modern.close()


async def test_a_session_that_its_server_no_longer_knows_is_a_failure_of_infrastructure(tmp_path: Path) -> None:
    port = free_port()
    with odd(port, "sessions") as entry, gateway(tmp_path, of(entry, "handshake"), "--warm_sessions", "0") as started:
        raw = RawClient(started)
        await raw.open()
        page = {"status": "404 Not Found", "kind": JSON, "body": rpc_error(-32600)}
        params = {"name": "page", "arguments": page}
        response = await raw.post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        assert is_away(response), response.text
        await raw.close()
