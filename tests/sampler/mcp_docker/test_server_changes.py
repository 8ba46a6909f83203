"""When a listening stream is asked for again."""

import asyncio
from typing import Any

import pytest

from sampler.mcp_docker.links import server_changes
from sampler.mcp_docker.links.messages import Message, RequestId
from sampler.mcp_docker.links.server_changes import ServerChanges


class RefusingLink:
    """To a server that answers every request for a stream with an error of this code."""

    name, gone = "refusing", ""

    def __init__(self, code: int) -> None:
        self.code = code
        self.asked = 0
        self.capabilities: Message = {"tools": {"listChanged": True}}

    def new_id(self) -> str:
        return str(self.asked)

    async def begin(self, number: RequestId, method: str, params: Message) -> "asyncio.Future[Message]":
        self.asked += 1
        found: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        found.set_result({"error": {"code": self.code, "message": "no"}})
        return found

    def forget_own(self, number: RequestId) -> None:
        pass

    async def send(self, body: bytes) -> None:
        pass

    def notify(self, message: Any) -> None:
        pass


@pytest.mark.parametrize(("code", "is_asked_again"), [(-32601, False), (-32603, True)])
async def test_a_server_that_does_not_know_listening_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, code: int, is_asked_again: bool
) -> None:
    monkeypatch.setattr(server_changes, "_FIRST_REST_S", 0.01)
    link = RefusingLink(code)
    changes = ServerChanges(link)
    await changes.open()
    await asyncio.sleep(0.3)
    assert (link.asked > 1) is is_asked_again
    changes.close()
