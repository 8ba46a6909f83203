"""Tool servers that are gone: their calls fail with them, and are not told as mistakes of the model."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from sampler.mcp_docker.links.channel import OnEnd, OnMessage
from sampler.mcp_docker.links.errors import ServerGone, StartFailed
from sampler.mcp_docker.links.server_link import ServerLink
from tests.sampler.mcp_docker.gateways import Gateway, RawClient, gateway, until_gone
from tests.sampler.mcp_docker.test_gateway_native import native
from tests.sampler.mcp_docker.test_gateway_protocol import talkers

pytestmark = pytest.mark.slow
SERVER_GONE, UNKNOWN = (502, -32500), (200, -32602)


async def end(started: Gateway, name: str) -> None:
    """End the processes of the server of this name."""
    ended = [each for each in started.tools() if each.cmdline()[-1:] == [name]]
    assert ended
    for process in ended:
        try:
            process.kill()
        except psutil.NoSuchProcess:  # its warden's end was its own
            continue
    await until_gone(ended)


async def called(raw: RawClient, name: str) -> httpx.Response:
    params = {"name": name, "arguments": {}}
    return await raw.post({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params})


async def refusal(raw: RawClient, name: str) -> tuple[int, int]:
    response = await called(raw, name)
    return response.status_code, response.json()["error"]["code"]


@pytest.mark.parametrize("entries", [native("ann", "bob"), talkers("ann", "bob")], ids=["native", "handshake"])
async def test_a_list_that_is_asked_again_does_not_forget_a_server_that_is_gone(
    tmp_path: Path, entries: dict[str, Any]
) -> None:
    with gateway(tmp_path, entries, "--warm_sessions", "0") as started:
        raw = RawClient(started)
        await raw.open()
        names = {tool["name"] for tool in (await raw.ask("tools/list"))["result"]["tools"]}
        assert "result" in await raw.call("only_ann")
        await end(started, "ann")
        shared = next(name.removeprefix("bob_") for name in sorted(names) if name.startswith("bob_"))
        for _ in range(2):
            assert await refusal(raw, "only_ann") == SERVER_GONE
            assert await refusal(raw, f"ann_{shared}") == SERVER_GONE
            assert await refusal(raw, "no_such_tool") == UNKNOWN  # which asks for the lists again
        left = {tool["name"] for tool in (await raw.ask("tools/list"))["result"]["tools"]}
        assert left == {name for name in names if name != "only_ann" and not name.startswith("ann_")}
        assert "result" in await raw.call("only_bob")
        assert "Unknown tool" not in (await called(raw, f"bob_{shared}")).text
        await raw.close()


async def test_a_server_that_is_gone_before_its_first_list_is_a_failure_of_infrastructure(tmp_path: Path) -> None:
    with gateway(tmp_path, native("ann", "bob"), "--warm_sessions", "0") as started:
        raw = RawClient(started)
        await raw.open()
        await end(started, "ann")
        assert await refusal(raw, "only_ann") == SERVER_GONE
        assert "result" in await raw.call("only_bob")
        await end(started, "bob")
        assert await refusal(raw, "anything") == SERVER_GONE
        response = await raw.post({"jsonrpc": "2.0", "id": 8, "method": "tools/list", "params": {}})
        assert response.status_code == 502, response.text
        assert all(f"tool server '{name}': its process was ended" in response.text for name in ("ann", "bob"))
        await raw.close()


@pytest.mark.parametrize("entries", [native("ann", "bob"), talkers("ann", "bob")], ids=["native", "handshake"])
async def test_what_only_a_server_that_is_gone_may_have_is_not_unknown(tmp_path: Path, entries: dict[str, Any]) -> None:
    with gateway(tmp_path, entries, "--warm_sessions", "0") as started:
        raw = RawClient(started)
        await raw.open()
        asked = [
            ("resources/read", {"uri": "note://ann/of-a-template"}),
            ("prompts/get", {"name": "only_of_ann"}),
            (
                "completion/complete",
                {
                    "ref": {"type": "ref/resource", "uri": "no://{such}"},
                    "argument": {"name": "such", "value": "a"},
                },
            ),
        ]
        await end(started, "ann")
        for method, params in asked:
            response = await raw.post({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
            assert (response.status_code, response.json()["error"]["code"]) == SERVER_GONE, (method, response.text)
        await raw.close()
        raw = RawClient(started)
        await raw.open()
        for method, params in asked:
            unknown = await raw.post({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
            assert unknown.status_code == 200, unknown.text
            assert "error" in unknown.json()
        await raw.close()


@pytest.mark.parametrize("are_listed", [True, False])
async def test_a_resource_that_no_server_can_have_is_unknown_also_while_one_is_gone(
    tmp_path: Path, are_listed: bool
) -> None:
    with gateway(tmp_path, talkers("ann", "bob"), "--warm_sessions", "0") as started:
        raw = RawClient(started)
        await raw.open()
        if are_listed:
            assert (await raw.ask("resources/read", uri="page://bob/7"))["result"]  # of a template: asks for all lists
        await end(started, "ann")
        of_ann = ["note://ann/one", "note://ann/made-by-a-tool", "page://ann/7"]
        for uri in of_ann:
            assert await read(raw, uri) == SERVER_GONE, uri
        assert (await raw.ask("resources/read", uri="page://bob/7"))["result"]
        for uri in ["note://bob/none", "other://x", "urn:x", "x"]:
            assert await read(raw, uri) == ((200, -32002) if are_listed else SERVER_GONE), uri
        await raw.close()


async def read(raw: RawClient, uri: str) -> tuple[int, int]:
    response = await raw.post({"jsonrpc": "2.0", "id": 7, "method": "resources/read", "params": {"uri": uri}})
    return response.status_code, response.json()["error"]["code"]


class SilentChannel:
    """To a server that never answers."""

    has_headers = False
    on_end: OnEnd

    async def open(self, on_message: OnMessage, on_end: OnEnd) -> None:
        self.on_end = on_end

    async def send(self, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        pass

    async def close(self) -> None:
        pass


async def test_a_server_that_ends_while_the_gateway_asks_it_is_named() -> None:
    channel = SilentChannel()
    link = ServerLink("ann", channel)
    opening = asyncio.create_task(link.open({}))
    await asyncio.sleep(0)
    listing = asyncio.create_task(link.all_pages("tools/list", "tools"))
    await asyncio.sleep(0)
    channel.on_end("its process ended with status 3")
    with pytest.raises(ServerGone, match="tool server 'ann': its process ended with status 3"):
        await listing
    with pytest.raises(StartFailed, match=r"^tool server 'ann': its process ended with status 3$"):
        await opening
