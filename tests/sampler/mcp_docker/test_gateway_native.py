"""Servers whose entry says `"revision": "2026-07-28"`: the gateway speaks it to them, for clients of all revisions."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, MCPError
from mcp_types import (
    CreateMessageResult,
    ElicitResult,
    ListRootsResult,
    Root,
    TextContent,
    ToolListChangedNotification,
)

from shared.processes.mongod import free_port
from tests.sampler.mcp_docker.gateways import PATIENCE_S, Gateway, RawClient, gateway
from tests.sampler.mcp_docker.modern_client import REVISION, ModernClient, message_of
from tests.sampler.mcp_docker.test_gateway_protocol import client as older_client
from tests.sampler.mcp_docker.test_gateway_protocol import talkers, text, until_told

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),  # older clients still do it
]
NATIVE = Path(__file__).parent / "native_talker.py"
ASKS_USER = {"elicitation": {"form": {}}}
NOTE = "note://ann/one"


def native(*names: str) -> dict[str, Any]:
    return {name: {"command": sys.executable, "args": [str(NATIVE), name], "revision": REVISION} for name in names}


class SilentUser:
    """Does not answer what a server asks."""

    def __init__(self) -> None:
        self.asked, self.withdrawn = asyncio.Event(), asyncio.Event()

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.asked.set()
        try:
            await asyncio.sleep(10 * PATIENCE_S)
        except asyncio.CancelledError:
            self.withdrawn.set()
            raise
        return ElicitResult(action="cancel")


@contextmanager
def served(name: str, log: Path, port: int = 0) -> Iterator[dict[str, Any]]:
    """The same server over HTTP; its entry."""
    port = port or free_port()
    with log.open("w") as output:
        process = subprocess.Popen([sys.executable, str(NATIVE), name, str(port)], stdout=output, stderr=output)
    try:
        ends_at = time.monotonic() + PATIENCE_S
        while time.monotonic() < ends_at and process.poll() is None:
            try:
                httpx.get(f"http://127.0.0.1:{port}/mcp")
                break
            except httpx.HTTPError:
                time.sleep(0.1)
        yield {name: {"url": f"http://127.0.0.1:{port}/mcp", "revision": REVISION}}
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module", params=["process", "url"])
def at(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp(f"native_{request.param}")
    with ExitStack() as stack:
        entry = native("ann") if request.param == "process" else stack.enter_context(served("ann", folder / "served"))
        yield stack.enter_context(gateway(folder, entry, "--warm_sessions", "0"))


@asynccontextmanager
async def by_hand(at: Gateway, episode: str = "", **capabilities: Any) -> AsyncIterator[ModernClient]:
    opened = ModernClient(at, episode, capabilities)
    try:
        yield opened
    finally:
        await opened.close()


async def elicit(context: Any, params: Any) -> ElicitResult:
    number = params.message.removeprefix("Age ").removesuffix("?")
    return ElicitResult(action="accept", content={"age": int(number) if number.isdigit() else 7})


async def sample(context: Any, params: Any) -> CreateMessageResult:
    asked = params.messages[0].content.text
    return CreateMessageResult(role="assistant", model="m", content=TextContent(type="text", text=asked.upper()))


async def list_roots(context: Any) -> ListRootsResult:
    return ListRootsResult(roots=[Root(uri="file:///home/x")])


ANSWERING = {"elicitation_callback": elicit, "sampling_callback": sample, "list_roots_callback": list_roots}


async def all_that_asks(session: Any) -> list[str]:
    found = [await session.call_tool("ask_user", {}), await session.call_tool("ask_all", {"topic": "x"})]
    found.append(await session.call_tool("three_rounds", {}))
    return [text(each) for each in found]


ANSWERS = ["ann: accept {'age': 7}", "7 X file:///home/x", "0,1,2,"]


async def test_results_that_ask_for_input_reach_a_client_of_the_same_revision(at: Gateway) -> None:
    before = (await at.health())["sessions"]
    given = {"mode": REVISION, "read_timeout_seconds": PATIENCE_S, **ANSWERING}
    async with Client(f"{at.url}/mcp", **given) as sdk:
        assert await all_that_asks(sdk) == ANSWERS
        prompt = await sdk.get_prompt("asking")
        assert prompt.messages[0].content.text == "prompted at 7"
    await at.until(sessions=before, ending=0)  # without an episode's id: each call's set has ended


async def test_a_client_of_an_older_revision_is_asked_by_requests(at: Gateway) -> None:
    async with older_client(at, **ANSWERING) as session:
        assert session.protocol_version == "2025-11-25"
        assert await all_that_asks(session) == ANSWERS
        prompt = await session.get_prompt("asking")
        assert prompt.messages[0].content.text == "prompted at 7"
        assert session.told.instructions == "I am ann."


async def test_what_only_the_newer_revision_has_is_not_in_an_older_answer(at: Gateway) -> None:
    raw = RawClient(at)
    await raw.open()
    result = (await raw.call("only_ann"))["result"]
    assert not result.keys() & {"resultType", "ttlMs", "cacheScope"}
    assert "_meta" not in result
    await raw.close()


@pytest.mark.parametrize("episode", ["", "run/state"])
async def test_a_state_leads_to_the_process_that_made_it(at: Gateway, episode: str) -> None:
    async with by_hand(at, episode, **ASKS_USER) as one, by_hand(at, episode, **ASKS_USER) as other:
        asked = await one.call("ask_user")
        assert asked["resultType"] == "input_required", asked
        assert asked["inputRequests"]["how_old"]["params"]["message"] == "How old?"
        answers = {"how_old": {"action": "accept", "content": {"age": 9}}}
        wrong = await other.call("ask_user", requestState=asked["requestState"] + "x", inputResponses=answers)
        assert wrong["code"] == -32602
        if episode:  # a forged state ends nothing
            asked_again = asked
        else:
            asked_again = await one.call("ask_user")
        found = await other.call("ask_user", requestState=asked_again["requestState"], inputResponses=answers)
        assert found["content"][0]["text"] == "ann: accept {'age': 9}"


async def test_a_servers_state_is_passed_on_as_it_is_within_an_episode(at: Gateway) -> None:
    async with by_hand(at, "run/as_it_is", **ASKS_USER) as user, by_hand(at, **ASKS_USER) as stranger:
        state = (await user.call("ask_user"))["requestState"]
        assert state.startswith("v1.")
        assert "~" in (await stranger.call("ask_user"))["requestState"]


async def test_a_client_that_cannot_be_asked_gets_an_error(at: Gateway) -> None:
    async with older_client(at) as session:
        with pytest.raises(MCPError, match="does not serve elicitation/create"):
            await session.call_tool("ask_user", {})
        assert text(await session.call_tool("only_ann", {})) == "ann"


async def test_a_client_that_refuses_to_answer_gets_its_own_words(at: Gateway) -> None:
    async def refuse(context: Any, params: Any) -> Any:
        raise ValueError("not today")

    async with older_client(at, elicitation_callback=refuse) as session:
        with pytest.raises(MCPError, match="no input for the tool server"):
            await session.call_tool("ask_user", {})


async def test_a_server_that_asks_for_ever_is_not_asked_for_ever(at: Gateway) -> None:
    async with older_client(at, **ANSWERING) as session, asyncio.timeout(PATIENCE_S):
        before = int(text(await session.call_tool("rounds", {})))
        with pytest.raises(MCPError, match="more than 10 times"):
            await session.call_tool("again_and_again", {})
        assert int(text(await session.call_tool("rounds", {}))) == before + 11


async def test_progress_logs_and_cancellation(at: Gateway) -> None:
    steps: list[tuple[float, str | None]] = []
    logged: list[Any] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, message))

    async def on_log(params: Any) -> None:
        logged.append(params.data)

    async with older_client(at, logging_callback=on_log) as session:
        counted = await session.call_tool("count_up", {"steps": 3}, progress_callback=on_progress)
        assert text(counted) == "3 steps"
        assert steps == [(1, "step 1"), (2, "step 2"), (3, "step 3")]
        assert text(await session.call_tool("log_it", {"text": "unheard"})) == "logged"
        await session.set_logging_level("info")
        assert text(await session.call_tool("log_it", {"text": "heard"})) == "logged"
        assert logged == ["heard"]
        waits, cancelled = [int(text(await session.call_tool(name, {}))) for name in ("waits", "cancellations")]
        call = asyncio.create_task(session.call_tool("wait", {"seconds": 600}))
        await until_told(session, "waits", str(waits + 1))
        call.cancel()
        await until_told(session, "cancellations", str(cancelled + 1))


async def test_a_call_is_cancelled_while_its_client_is_asked(at: Gateway) -> None:
    user = SilentUser()
    async with older_client(at, elicitation_callback=user) as session:
        call = asyncio.create_task(session.call_tool("ask_user", {}))
        async with asyncio.timeout(PATIENCE_S):
            await user.asked.wait()
        call.cancel()
        async with asyncio.timeout(PATIENCE_S):
            await user.withdrawn.wait()  # the user has nothing left to answer
        await at.until_in_flight(0)
        assert text(await session.call_tool("only_ann", {})) == "ann"


async def test_arguments_are_repeated_in_headers(at: Gateway) -> None:
    async with older_client(at) as session:
        for region in ("north", "ø"):
            assert text(await session.call_tool("where", {"region": region})) == f"in {region}"


async def test_a_set_has_an_id_of_its_own(at: Gateway) -> None:
    async with older_client(at) as one, older_client(at) as other:
        told = [text(await each.call_tool("episode", {})) for each in (one, one, other)]
    assert told[0] == told[1] != told[2]
    assert all(len(each) > 20 for each in told)


async def test_changes_are_heard_again_after_a_stream_has_ended(at: Gateway) -> None:
    changed = asyncio.Event()

    async def on_message(message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            changed.set()

    async with older_client(at, message_handler=on_message) as session, asyncio.timeout(PATIENCE_S):
        assert text(await session.call_tool("grow", {})) == "grown"
        await changed.wait()
        assert text(await session.call_tool("grown_ann", {})) == "ann"
        changed.clear()
        assert text(await session.call_tool("stop_listening", {})) == "ended"
        await changed.wait()  # it may have changed while nothing was heard
        changed.clear()
        assert text(await session.call_tool("grow", {})) == "grown"
        await changed.wait()


async def test_a_resources_changes_are_told_to_those_who_subscribed(at: Gateway) -> None:
    async with by_hand(at, "run/listen") as user, asyncio.timeout(PATIENCE_S):
        async with user.listening(7, resourceSubscriptions=[NOTE]) as stream:
            first = await anext(stream)
            assert first["params"]["notifications"] == {"resourceSubscriptions": [NOTE]}
            assert (await user.call("write_note", arguments={"text": "new"}))["content"][0]["text"] == "written"
            updated = await anext(stream)
            assert (updated["method"], updated["params"]["uri"]) == ("notifications/resources/updated", NOTE)
            assert updated["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": 7}
        contents = message_of(await user.post("resources/read", uri=NOTE))["result"]
        assert contents["contents"][0]["text"] == "new"
        assert contents["cacheScope"] == "private"


async def test_an_older_client_subscribes_to_a_resource(at: Gateway) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()

    async def on_message(message: Any) -> None:
        told.put_nowait(message.method)

    async with older_client(at, message_handler=on_message) as session, asyncio.timeout(PATIENCE_S):
        await session.subscribe_resource(NOTE)
        await session.call_tool("write_note", {"text": "a"})
        assert await told.get() == "notifications/resources/updated"
        await session.unsubscribe_resource(NOTE)
        await session.call_tool("write_note", {"text": "b"})
        await session.call_tool("grow", {})
        assert await told.get() == "notifications/tools/list_changed"


async def test_one_set_may_have_servers_of_both_revisions(tmp_path: Path) -> None:
    with gateway(tmp_path, native("ann") | talkers("bob"), "--warm_sessions", "0") as both:
        async with older_client(both, **ANSWERING) as session:
            assert text(await session.call_tool("ann_ask_user", {})) == "ann: accept {'age': 7}"
            assert text(await session.call_tool("bob_ask_user", {})) == "bob: accept age=7"
        async with by_hand(both, "run/both", **ASKS_USER) as user:
            ours = await user.call("bob_ask_user")
            assert ours["resultType"] == "input_required"
            unknown = await user.call("bob_ask_user", requestState="v1.x", inputResponses={})
            assert "requestState is unknown" in unknown["message"]


async def test_a_server_that_does_not_answer_about_changes_starts_nevertheless(tmp_path: Path) -> None:
    answers = {
        "server/discover": {"supportedVersions": [REVISION], "capabilities": {"tools": {"listChanged": True}}},
        "tools/list": {"tools": [{"name": "deaf", "inputSchema": {"type": "object"}}]},
    }
    program = f"""
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if (result := {answers!r}.get(message["method"])) is not None:
        print(json.dumps({{"jsonrpc": "2.0", "id": message["id"], "result": result}}), flush=True)
"""
    entry = {"deaf": {"command": sys.executable, "args": ["-c", program], "revision": REVISION}}
    with gateway(tmp_path, entry, "--warm_sessions", "0", "--start_s", "60") as started:
        async with older_client(started) as session:
            assert [tool.name for tool in (await session.list_tools()).tools] == ["deaf"]


async def test_a_server_of_the_older_revisions_alone_does_not_start(tmp_path: Path) -> None:
    old = talkers("ann")
    program = "import json,sys\nfor line in sys.stdin:\n  m=json.loads(line)\n  print(json.dumps({'jsonrpc':'2.0','id':m['id'],"
    program += "'error':{'code':-32601,'message':'initialize first'}}),flush=True)"
    old["ann"] |= {"args": ["-c", program], "revision": REVISION}
    with gateway(tmp_path, old, "--warm_sessions", "0") as started:
        raw = RawClient(started)
        refused = await raw.open()
        await raw.http.aclose()
        assert refused.status_code == 502
        assert "server/discover is answered with" in refused.text
        assert "initialize first" in refused.text
