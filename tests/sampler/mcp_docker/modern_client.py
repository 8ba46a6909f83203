"""MCP's revision of 2026-07-28 by hand: one POST a request, with the headers and the `_meta` that it demands."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.sampler.mcp_docker.gateways import ACCEPT, PATIENCE_S, Gateway

REVISION = "2026-07-28"
_PREFIX = "io.modelcontextprotocol"


class ModernClient:
    """`episode`: sent as `Tandem-Episode-Id`; foreign clients send none."""

    def __init__(self, at: Gateway, episode: str = "", capabilities: Mapping[str, Any] | None = None) -> None:
        self.http = httpx.AsyncClient(base_url=at.url, timeout=PATIENCE_S)
        self._headers = {"Accept": ACCEPT, "MCP-Protocol-Version": REVISION}
        self._headers |= {"Tandem-Episode-Id": episode} if episode else {}
        self._meta = {
            f"{_PREFIX}/protocolVersion": REVISION,
            f"{_PREFIX}/clientInfo": {"name": "by hand", "version": "1"},
            f"{_PREFIX}/clientCapabilities": dict(capabilities or {}),
        }

    def _request(
        self, method: str, params: Mapping[str, Any], headers: list[tuple[str, str]], number: int
    ) -> dict[str, Any]:
        named = [("Mcp-Name", str(params[key])) for key in ("name", "uri") if key in params]
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, "_meta": self._meta}}
        return {
            "json": message,
            "headers": [*self._headers.items(), ("Mcp-Method", method), *named, *headers],
        }

    async def post(self, method: str, *headers: tuple[str, str], number: int = 1, **params: Any) -> httpx.Response:
        return await self.http.post("/mcp", **self._request(method, params, list(headers), number))

    async def call(self, name: str, *headers: tuple[str, str], **params: Any) -> dict[str, Any]:
        """The result, or the error, of `tools/call`. `params`: beyond the name."""
        found = message_of(await self.post("tools/call", *headers, **{"arguments": {}, **params, "name": name}))
        told: dict[str, Any] = found.get("result") or found["error"]
        return told

    @asynccontextmanager
    async def listening(self, number: int = 77, **wanted: Any) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The messages of a `subscriptions/listen` stream."""
        request = self._request("subscriptions/listen", {"notifications": wanted}, [], number)
        async with self.http.stream("POST", "/mcp", **request) as response:
            assert response.status_code == 200, await response.aread()
            yield events(response)

    async def close(self) -> None:
        await self.http.aclose()


async def events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def message_of(response: httpx.Response) -> dict[str, Any]:
    """The answer, as JSON or as the last event of a stream."""
    lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("data: ")) if lines else response.json()
    return found
