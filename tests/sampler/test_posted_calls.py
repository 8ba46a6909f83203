"""Tool calls past the SDK's dispatcher: what a server may send among the events of a call, and how one ends early."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from sampler.core.errors import ToolServerDied, ToolTimeout
from sampler.core.tools import ToolSession
from sampler.core.tools.connection import Connection
from sampler.core.tools.limits import ToolLimits
from shared.mcp.busy import Line, PatientClient
from shared.mcp.servers import ToolServer
from tests.sampler.raw_http import EVENTS, Answer, error_answer, raw_http, result, text_answer

PROGRESS = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":@ID@,"progress":1}}'


def event(message: bytes, **fields: str) -> bytes:
    return b"".join(f"{name}: {value}\n".encode() for name, value in fields.items()) + b"data: " + message + b"\n\n"


def message(method: str, **fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, **fields}).encode()


CASES = {
    "ping": [event(message("ping", id=7)), event(text_answer())],
    "unknown request": [event(message("roots/list", id=7)), event(text_answer())],
    "progress": [event(PROGRESS), event(PROGRESS.replace(b"@ID@", b'["x"]')), event(text_answer())],
    "log": [event(message("notifications/message", params={"level": "info", "data": "x"})), event(text_answer())],
    "priming": [b"id: 1\ndata:\n\n", event(text_answer(), id="2")],
    "other events": [event(b"no JSON", event="keep-alive"), event(text_answer())],
    "another id": [event(result(12345, content=[{"type": "text", "text": "TEXT"}]))],
}


@pytest.mark.parametrize("kind", CASES)
async def test_an_answer_is_read_after_whatever_a_server_sends_before_it(kind: str) -> None:
    answers = {kind: Answer(CASES[kind], kind=EVENTS)}
    async with raw_http(answers) as server, ToolSession([server]) as session:
        for _ in range(2):
            assert (await session.call("say", {"kind": kind})).text == "TEXT"


async def test_a_changed_list_that_is_reported_during_a_call_is_counted() -> None:
    changed = event(message("notifications/tools/list_changed"))
    answers = {"changed": Answer([changed, event(text_answer())], kind=EVENTS)}
    async with raw_http(answers) as server:
        connection = Connection(server, ToolLimits())
        await connection.open()
        try:
            tools = await connection.list_tools()
            await connection.call(tools[0], {"kind": "changed"}, 60.0)
            assert connection.num_list_changes == 1
        finally:
            await connection.close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer([event(PROGRESS)], kind=EVENTS), "without a response"),
        (Answer([b"id: 1\nretry: 1\ndata:\n\n"], kind=EVENTS), "reconnection attempts were exhausted"),
        (Answer([event(b"{")], kind=EVENTS), "Failed to parse SSE message"),
        (Answer([b"{"]), "Failed to parse JSON response"),
        (Answer([message("ping", id=7)]), "it is no answer"),
        (Answer([b"hello"], kind="text/plain"), "Unexpected content type"),
        (Answer([], status="202 Accepted"), "202 Accepted"),
        (Answer([], status="307 Elsewhere", fields={"Location": "/other"}, ping="404 Gone"), "was not followed"),
    ],
)
async def test_a_call_without_an_answer_is_a_failure_with_its_reason(answer: Answer, why: str) -> None:
    async with raw_http({"x": answer}) as server, ToolSession([server]) as session:
        with pytest.raises(ToolServerDied, match=why):
            await session.call("say", {"kind": "x"})


async def test_an_error_of_the_tool_is_an_answer() -> None:
    async with (
        raw_http({"x": Answer([error_answer(-32602, "wrong arguments")])}) as server,
        ToolSession([server]) as session,
    ):
        answer = await session.call("say", {"kind": "x"})
        assert (answer.text, answer.is_error) == ("wrong arguments", True)


async def test_a_call_that_is_out_of_time_is_cancelled_at_its_server() -> None:
    sent: list[dict[str, Any]] = []
    received = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0)
        asked = json.loads(await reader.readexactly(length)) if length else {}
        sent.append(asked)
        body = b""
        match asked.get("method"):
            case "initialize":
                about = {"serverInfo": {"name": "raw", "version": "1"}, "capabilities": {"tools": {}}}
                body = result(asked["id"], protocolVersion=asked["params"]["protocolVersion"], **about)
            case "tools/list":
                body = result(asked["id"], tools=[{"name": "say", "inputSchema": {"type": "object"}}])
            case "tools/call":
                await reader.read()  # silent until the client leaves
            case "notifications/cancelled":
                received.set()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" + body)
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/mcp"
        async with ToolSession([ToolServer(name="raw", url=url)]) as session:
            with pytest.raises(ToolTimeout):
                await session.call("say", {}, timeout_s=0.5)
            async with asyncio.timeout(60):
                await received.wait()
    (call,) = [one for one in sent if one.get("method") == "tools/call"]
    (cancelled,) = [one for one in sent if one.get("method") == "notifications/cancelled"]
    assert cancelled["params"]["requestId"] == call["id"]


class _Heads(httpx2.AsyncBaseTransport):
    """Answers with a cookie to the third of its requests, whose heads it keeps."""

    def __init__(self) -> None:
        self.heads: list[httpx2.Headers] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.heads.append(request.headers)
        fields = {"set-cookie": "place=7; Path=/"} if len(self.heads) == 3 else {}
        return httpx2.Response(200, headers=fields, content=b"{}")


async def test_a_posted_message_has_the_fields_that_the_client_would_send() -> None:
    """Length, cookies and the fields of the session, also where the last request's fields are sent again."""
    transport, url = _Heads(), httpx2.URL("http://tools.example/mcp")
    async with PatientClient(Line(), transport=transport, headers={"X-Key": "k"}) as http:
        for content, version in ((b"a", "1"), (b"bb", "1"), (b"ccc", "2"), (b"dddd", "2"), (b"e", "3")):
            expected = http.build_request("POST", url, content=content, headers={"Mcp-Version": version}).headers
            response = await http.post_message(url, content, {"Mcp-Version": version})
            assert await response.aread() == b"{}"
            assert dict(transport.heads[-1]) == dict(expected)
        assert [head.get("cookie") for head in transport.heads] == [None, None, None, "place=7", "place=7"]
        assert [head["content-length"] for head in transport.heads] == ["1", "2", "3", "4", "1"]


async def test_every_posted_message_is_authenticated() -> None:
    class Signed(httpx2.Auth):
        def auth_flow(self, request: httpx2.Request) -> Iterator[httpx2.Request]:
            request.headers["authorization"] = f"signed {len(request.content)}"
            yield request

    transport, url = _Heads(), httpx2.URL("http://tools.example/mcp")
    async with PatientClient(Line(), transport=transport, auth=Signed()) as http:
        for content in (b"a", b"bb"):
            await (await http.post_message(url, content, {})).aclose()
    assert [head["authorization"] for head in transport.heads] == ["signed 1", "signed 2"]
