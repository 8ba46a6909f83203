"""Client of a manager of tool servers over the older HTTP protocol (`…/mcpapi`) of AgentDock's node.

    GET  /servers             {"servers": ["search", …]}
    GET  /server/{id}/tools   {"server": id, "tools": [{"type": "function", "function": {"name", "description", "parameters"}}]}
    GET  /tools               {"tools": […]}, of all servers, named "id.tool" (not needed here)
    POST /tool/{id}.{tool}    body: the arguments; {"content": text or JSON, or a list of {"type": "text", "text": …} and
                              {"type": "image_url", "image_url": {"url": "data:image/…;base64,…"}}}

Limits of the protocol, and their handling
  * All clients of the manager share its sessions with its servers: there is no state per episode.
  * The manager drops `isError`; the text of the error arrives as ordinary content.
  * Every error inside the manager comes as {"status_code": 500, "detail": "…"}, mostly with HTTP status 200. A detail that
    reports a lost session is an infrastructure failure; others (wrong arguments, an unknown tool) are answers.
"""

import asyncio
import json
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import httpx2
from mcp_types import CallToolResult, ContentBlock, ImageContent, TextContent
from pydantic_core import from_json  # rejects more than 200 levels, which json would accept and fail on later

from sampler.core.errors import ToolServerDied, ToolTimeout
from sampler.core.tools.limits import ToolLimits
from sampler.core.tools.offered import OfferedTool
from shared.mcp.busy import Line
from shared.mcp.http_bodies import BodyTooLong
from shared.mcp.messages import mended
from shared.mcp.servers import ToolServer
from shared.mcp.transports import http_client
from shared.outside_text import clipped, text_of

log = logging.getLogger(__name__)

# anyio.ClosedResourceError has an empty message.
_LOST_SESSION = re.compile(
    r"^$|connection closed|closedresource|broken ?pipe|session terminated|^session for server|timed out while waiting",
    re.IGNORECASE,
)
_DATA_URL = re.compile(r"data:(?P<type>[^;,]*);base64,(?P<data>.*)", re.DOTALL)
_HTTP_ERROR = 400


class ManagerConnection:
    """`open`, `list_tools`, `call`, `close`, as `ToolConnection` promises. There is no session, only single requests."""

    def __init__(self, server: ToolServer, limits: ToolLimits, line: Line | None = None) -> None:
        self.server = server
        self.line = line or Line()
        self.num_list_changes = 0  # always 0: the protocol has no notifications
        self.on_list_changed: Callable[[], None] = lambda: None
        self._limits = limits
        self._base, mark, query = (server.url or "").partition("?")
        self._query = mark + query
        self._http: httpx2.AsyncClient | None = None
        self._servers: list[str] = []
        self._slots = asyncio.Semaphore(limits.max_parallel_calls)

    async def open(self) -> None:
        """Request the manager's list of servers. Raises ToolFailure."""
        self._http = http_client(self.server, self._limits, httpx2.Timeout(self._limits.open_s), self.line)
        try:
            names = await self._get("servers", "servers")
        except BaseException:  # cancelled too: leave nothing half-open
            await self.close()
            raise
        self._servers = [str(name) for name in names]

    async def list_tools(self) -> list[OfferedTool]:
        """All tools of all servers. Raises ToolFailure."""
        tools: list[OfferedTool] = []
        for name in self._servers:
            listed = await self._get(f"server/{quote(name, safe='')}/tools", "tools")
            tools += [self._offered(name, entry) for entry in listed]
        return tools

    async def call(self, tool: OfferedTool, arguments: Mapping[str, Any], timeout_s: float) -> CallToolResult:
        """One call. Raises ToolFailure if the manager does not answer, or lost the session with the tool's server."""
        path = f"tool/{quote(f'{tool.server}.{tool.name}', safe='')}"
        timeout_s = min(timeout_s, self._limits.max_call_s)
        try:
            async with self._slots:
                response = await self._request("POST", path, timeout_s, json=dict(arguments))
        except BodyTooLong as exc:
            return CallToolResult(content=[TextContent(type="text", text=f"{exc}; ask for less")], is_error=True)
        try:
            body = from_json(mended(response.content))
        except ValueError:
            body = None
        if not isinstance(body, dict) or not body.keys() & {"content", "detail"}:
            raise self._died(path, f"HTTP {response.status_code} with {_shown(response)!r}; expected content or detail")
        if "content" in body:
            return _to_result(body)
        detail = body["detail"] if isinstance(body["detail"], str) else json.dumps(body["detail"], ensure_ascii=False)
        if response.status_code in (401, 403) or _LOST_SESSION.search(detail):
            raise self._died(path, detail or "the manager lost its session with the server")
        return CallToolResult(content=[TextContent(type="text", text=detail)], is_error=True)

    async def close(self) -> None:
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()

    async def _get(self, path: str, key: str) -> list[Any]:
        try:
            response = await self._request("GET", path, self._limits.open_s)
        except BodyTooLong as exc:
            raise self._died(path, str(exc)) from exc
        if response.status_code >= _HTTP_ERROR:
            raise self._died(path, f"HTTP {response.status_code} {_shown(response)}")
        try:
            listed = from_json(mended(response.content))[key]
        except (ValueError, KeyError, TypeError) as exc:
            raise self._died(path, f"{_shown(response)!r}; expected JSON with {key!r}") from exc
        if not isinstance(listed, list):
            raise self._died(path, f"{key} is {type(listed).__name__}; expected a list")
        return listed

    async def _request(self, method: str, path: str, timeout_s: float, **content: Any) -> httpx2.Response:
        if self._http is None:
            raise self._died(path, "the session is closed")
        try:
            async with asyncio.timeout(
                timeout_s
            ) as clock:  # for the whole request: httpx2's time-outs apply to each read
                with self.line.clock(lambda seconds: clock.reschedule((clock.when() or 0.0) + seconds)):
                    return await self._http.request(
                        method, f"{self._base.rstrip('/')}/{path}{self._query}", timeout=None, **content
                    )
        except TimeoutError as exc:
            raise ToolTimeout(f"tool manager {self.server.address}: {path}: no answer within {timeout_s:g} s") from exc
        except BodyTooLong:
            raise
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as exc:
            raise self._died(path, f"{type(exc).__name__}: {exc}") from exc

    def _offered(self, server: str, entry: Any) -> OfferedTool:
        function = entry.get("function") if isinstance(entry, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise self._died(f"server/{server}/tools", f"{clipped(repr(entry), 200)}; expected a function schema")
        name, description, parameters = function["name"], function.get("description"), function.get("parameters")
        return OfferedTool(
            server=server,
            name=name,
            description=description if isinstance(description, str) else "",
            parameters=parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}},
            idempotent=self.server.declares_idempotent(name, f"{server}.{name}"),
        )

    def _died(self, path: str, why: str) -> ToolServerDied:
        return ToolServerDied(f"tool manager {self.server.address}: {path}: {self.server.quoted(why)}")


def _shown(response: httpx2.Response) -> str:
    return clipped(text_of(response.content[:1000]), 200)


def _to_result(body: Mapping[str, Any]) -> CallToolResult:
    content = body["content"]
    is_error = body.get("status") == "error" or (isinstance(content, dict) and "error" in content)
    blocks = [_block(part) for part in content] if _is_parts(content) else [_text(content)]
    return CallToolResult(content=blocks, is_error=is_error)


def _is_parts(content: Any) -> bool:
    """Whether this is a list of content parts, and not a tool's own JSON list."""
    return isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") in ("text", "image_url") for part in content
    )


def _block(part: Mapping[str, Any]) -> ContentBlock:
    if part["type"] == "text":
        return _text(part.get("text", ""))
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    match = _DATA_URL.fullmatch(url) if isinstance(url, str) else None
    if match is None:
        return _text(f"[image: {url}]")
    return ImageContent(type="image", mime_type=match["type"], data=match["data"])


def _text(value: Any) -> TextContent:
    """The manager parses texts that happen to be JSON: serialize them again."""
    return TextContent(type="text", text=value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
