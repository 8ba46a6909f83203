"""What a tool server by URL answers to messages that are no requests."""

from typing import Any

import httpx2
import pytest

from sampler.mcp_docker.links.remote_client import RemoteClient
from shared.mcp.busy import Line

ELICITED = {"jsonrpc": "2.0", "id": 3, "result": {"action": "accept", "content": {}}}
CALL = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "x"}}


@pytest.mark.parametrize(("message", "status", "is_told"), [(ELICITED, 202, False), (CALL, 502, True)])
async def test_the_answer_to_a_servers_request_has_no_answer_of_its_own(
    message: dict[str, Any], status: int, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    url = "http://tools/mcp"
    accepts = httpx2.MockTransport(lambda request: httpx2.Response(202))
    async with (
        RemoteClient(Line(), str, transport=accepts) as client,
        client.stream("POST", url, json=message) as found,
    ):
        assert found.status_code == status
    assert ("is not answered" in caplog.text) is is_told
