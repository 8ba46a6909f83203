"""Servers of 2026-07-28 that hang, end, answer nonsense, or serve another revision after a restart."""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import MCPError
from mcp_types import ElicitResult

from shared.processes.mongod import free_port
from tests.sampler.mcp_docker.gateways import PATIENCE_S, Gateway, RawClient, gateway, until_gone
from tests.sampler.mcp_docker.modern_client import REVISION, ModernClient, message_of
from tests.sampler.mcp_docker.test_gateway_native import SilentUser, served
from tests.sampler.mcp_docker.test_gateway_protocol import client as older_client
from tests.sampler.mcp_docker.test_gateway_protocol import text

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),  # older clients still do it
]
SCRIPTED = Path(__file__).parent / "scripted_native.py"
SERVER_GONE = -32500
URI = "note://x"
QUESTION = {
    "method": "elicitation/create",
    "params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
}


def scripted(*habits: str) -> dict[str, Any]:
    return {"odd": {"command": sys.executable, "args": [str(SCRIPTED), *habits], "revision": REVISION}}


@contextmanager
def odd(folder: Path, *habits: str, flags: tuple[str, ...] = ()) -> Iterator[Gateway]:
    with gateway(folder, scripted(*habits), "--warm_sessions", "0", *flags) as started:
        yield started
        assert "Traceback" not in started.log.read_text()


def asking(**result: Any) -> str:
    return f'{{"jsonrpc":"2.0","id":ID,"result":{json.dumps({"resultType": "input_required", **result})}}}'


NONSENSE = [
    asking(),
    asking(inputRequests=[], requestState=None),
    asking(inputRequests={"a": 1}),
    asking(inputRequests={"a": {"method": 7}}),
    asking(inputRequests={"a": {"method": "no/such", "params": []}}),
    asking(inputRequests={"": QUESTION | {"params": None}, "b": None}),
    asking(inputRequests={str(number): QUESTION for number in range(20_000)}),
    '{"jsonrpc":"2.0","id":ID,"error":null}',
    '{"jsonrpc":"2.0","id":ID,"error":{"code":"x","message":[]}}',
    '{"jsonrpc":"2.0","id":ID,"error":{"code":-32022,"message":[],"data":{"supported":["2025-11-25"]}}}',
    '{"jsonrpc":"2.0","id":ID,"result":7}',
    '{"jsonrpc":"2.0","id":ID,"result":{"_meta":[],"resultType":{}}}',
]
ASIDE = [  # before an answer
    '{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged"}',
    '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[1]}}',
    '{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":{}}}}',
    '{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}',
    '{"jsonrpc":"2.0","id":"no such request","result":{}}',
    '{"jsonrpc":"2.0","id":"tandem-gateway-999","result":{"resultType":"input_required"}}',
    "[]",
    "\x00",
]


async def answer_all(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={})


async def test_nonsense_is_the_end_of_one_call(tmp_path: Path) -> None:
    with odd(tmp_path) as started:
        raw = RawClient(started)
        await raw.open({"elicitation": {}})
        for number, line in enumerate(NONSENSE, start=1):
            call = {"name": "write", "arguments": {"lines": [*ASIDE, line]}}
            response = await raw.post({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call})
            found = message_of(response)
            assert found["id"] == number, line
            if "19999" in line:
                assert "20000 questions at once" in found["error"]["message"]
        assert (await raw.call("listens"))["result"]["content"][0]["text"] == "1"
        await raw.close()


async def test_nonsense_reaches_a_client_of_the_same_revision_as_an_answer(tmp_path: Path) -> None:
    with odd(tmp_path) as started:
        modern = ModernClient(started, "run/nonsense", {"elicitation": {"form": {}}})
        for line in NONSENSE:
            found = message_of(await modern.post("tools/call", name="write", arguments={"lines": [*ASIDE, line]}))
            assert found["id"] == 1, line
        assert (await modern.call("listens"))["content"][0]["text"] == "1"
        await modern.close()


@pytest.mark.parametrize("code", [-32700, -32600, -32020, -32022])
async def test_a_server_that_refuses_the_revision_is_a_failure_of_infrastructure(tmp_path: Path, code: int) -> None:
    line = f'{{"jsonrpc":"2.0","id":ID,"error":{{"code":{code},"message":"no"}}}}'
    with odd(tmp_path) as started:
        raw, modern = RawClient(started), ModernClient(started, "run/refused")
        await raw.open()
        call = {"name": "write", "arguments": {"lines": [line]}}
        for response in (
            await raw.post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}),
            await modern.post("tools/call", **call),
        ):
            assert response.status_code == 502
            assert response.json()["error"]["code"] == SERVER_GONE
            assert "'odd' does not take 2026-07-28" in response.text
        await raw.close()
        await modern.close()


async def test_a_server_that_ends_while_its_client_is_asked_ends_the_question(tmp_path: Path) -> None:
    user = SilentUser()
    with odd(tmp_path) as started:
        async with older_client(started, elicitation_callback=user) as session, asyncio.timeout(PATIENCE_S):
            call = asyncio.create_task(session.call_tool("write", {"lines": [asking(inputRequests={"a": QUESTION})]}))
            await user.asked.wait()
            (server,) = [each for each in started.tools() if str(SCRIPTED) in each.cmdline() and not each.children()]
            server.kill()
            with pytest.raises(MCPError, match="its process was ended by signal 9"):
                await call
            await user.withdrawn.wait()


@pytest.mark.thorough
async def test_a_server_that_never_lists_its_tools_is_not_waited_for(tmp_path: Path) -> None:
    with odd(tmp_path, "no-lists", flags=("--call_s", "5", "--broken_s", "5")) as started:
        raw, modern = RawClient(started), ModernClient(started, "run/no-lists")
        await raw.open()
        response = await raw.post({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
        assert response.status_code == 504
        assert response.json()["error"]["code"] == -32001
        assert (await modern.post("tools/call", name="write", arguments={})).status_code == 504
        await raw.close()
        await modern.close()


@pytest.mark.parametrize("revision", [REVISION, "handshake"])
@pytest.mark.thorough
async def test_a_session_whose_server_reads_nothing_ends_with_its_client(tmp_path: Path, revision: str) -> None:
    """The call does not fit into the pipe, nor does its cancellation, and nothing waits for that."""
    flags = ("--broken_s", "2", "--limits.output_mb", "10")
    entry = scripted("deaf") if revision == REVISION else DEAF
    with gateway(tmp_path, entry, "--warm_sessions", "0", *flags) as started:
        raw = RawClient(started)
        await raw.open()
        tools = started.tools()
        body = {"name": "write", "arguments": {"text": "x" * 1_000_000}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": body}
        deafening = asyncio.create_task(raw.call("write", 2))  # from here on, nothing is read
        await started.until_in_flight(1)
        with pytest.raises(httpx.ReadTimeout):
            await raw.http.post("/mcp", json=message, headers=raw.headers, timeout=5.0)
        deafening.cancel()
        await asyncio.wait({deafening})
        await raw.http.aclose()
        await started.until(sessions=0, ending=0)
        await until_gone(tools[1:])


DEAF = {
    "deaf": {
        "command": sys.executable,
        "args": [
            "-c",
            """
import json, sys, time
for line in sys.stdin:
    message = json.loads(line)
    told = {"tools": {}} if message["method"] == "initialize" else {}
    tools = [{"name": "write", "inputSchema": {"type": "object"}}]
    result = {"protocolVersion": "2025-11-25", "capabilities": told, "serverInfo": {"name": "d", "version": "1"}}
    if message["method"] == "tools/call":
        time.sleep(10_000)
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result | {"tools": tools}}), flush=True)
""",
        ],
    }
}


async def test_requests_that_a_server_does_not_read_are_bounded(tmp_path: Path) -> None:
    with odd(tmp_path, "deaf") as started:
        raw = RawClient(started)
        await raw.open()
        calls = [asyncio.create_task(raw.call("write", number, text="x" * 15_000_000)) for number in range(7)]
        async with asyncio.timeout(PATIENCE_S):
            done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        for refused in (call.result()["error"] for call in done):
            assert refused["code"] == SERVER_GONE
            assert "has not read" in refused["message"]
        for call in waiting:
            call.cancel()
        await asyncio.wait(waiting)
        await raw.close()


async def test_changes_are_heard_after_a_stream_that_ended_as_soon_as_it_began(tmp_path: Path) -> None:
    with odd(tmp_path, "brief") as started:
        async with older_client(started) as session, asyncio.timeout(PATIENCE_S):
            while text(await session.call_tool("listens", {})) != "2":  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)


async def test_a_stream_that_was_refused_when_the_session_began_is_asked_for_again(tmp_path: Path) -> None:
    changed = asyncio.Event()

    async def on_message(message: Any) -> None:
        changed.set()

    with odd(tmp_path, "refusing") as started:
        async with older_client(started, message_handler=on_message) as session, asyncio.timeout(PATIENCE_S):
            await changed.wait()  # meanwhile its tools may have changed
            assert text(await session.call_tool("listens", {})) == "2"


async def test_an_agreement_that_is_no_list_is_none(tmp_path: Path) -> None:
    with odd(tmp_path, "wrong-agreement") as started:
        async with older_client(started) as session:
            with pytest.raises(MCPError, match="tells no changes of"):
                await session.subscribe_resource(URI)
            assert int(text(await session.call_tool("listens", {}))) == 2


async def test_a_resource_that_one_stream_leaves_is_kept_for_one_that_is_being_opened(tmp_path: Path) -> None:
    with odd(tmp_path) as started:
        first, second = ModernClient(started, "run/two"), ModernClient(started, "run/two")
        opened = asyncio.Event()

        async def listen() -> list[str]:
            async with second.listening(8, resourceSubscriptions=[URI, "note://held"]) as stream:
                agreed: list[str] = (await anext(stream))["params"]["notifications"]["resourceSubscriptions"]
                opened.set()
                for _ in range(5):  # until the server has heard that the first one left
                    await asyncio.sleep(0.2)
                    assert (await second.call("wanted"))["content"][0]["text"].split() == agreed
                return agreed

        async with asyncio.timeout(PATIENCE_S):
            async with first.listening(7, resourceSubscriptions=[URI]) as stream:
                await anext(stream)
                opening = asyncio.create_task(listen())
                while "held" not in (await first.call("wanted"))["content"][0]["text"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            await asyncio.sleep(1)  # the gateway learns that it left
            assert not opened.is_set()
            await first.call("release")
            assert await opening == [URI, "note://held"]
        await first.close()
        await second.close()


async def test_a_servers_own_state_is_not_mistaken_for_the_gateways(tmp_path: Path) -> None:
    """Within an episode nothing was put before it."""
    state = "a" * 32 + "~ of the server"
    with odd(tmp_path) as started:
        modern = ModernClient(started, "run/state")
        assert (await modern.call("state", requestState=state))["content"][0]["text"] == state
        await modern.close()


class OlderServer(BaseHTTPRequestHandler):
    """Answers as servers of the older revisions do a request without a session."""

    def do_POST(self) -> None:
        error = {"code": -32600, "message": "Bad Request: Missing session ID"}
        body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
        self.send_response(400)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given: Any) -> None:
        pass


@contextmanager
def older_server(port: int) -> Iterator[None]:
    with ThreadingHTTPServer(("127.0.0.1", port), OlderServer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


async def test_a_server_that_serves_another_revision_after_a_restart_is_gone(tmp_path: Path) -> None:
    port = free_port()
    with ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        entry = first.enter_context(served("ann", tmp_path / "first", port))
        started = stack.enter_context(gateway(tmp_path, entry, "--warm_sessions", "0"))
        raw = RawClient(started)
        await raw.open()
        assert "result" in await raw.call("only_ann")
        first.close()
        stack.enter_context(older_server(port))
        call = {"name": "only_ann", "arguments": {}}
        response = await raw.post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
        assert (response.status_code, response.json()["error"]["code"]) == (502, SERVER_GONE), response.text
        await raw.close()
        again = RawClient(started)
        refused = await again.open()
        assert refused.status_code == 502
        assert "Missing session ID" in refused.text
        await again.http.aclose()
