"""`/mcpapi`: the older HTTP protocol for listing and calling tools, as the sampler's tools and AgentDock's clients speak it.

    GET  /mcpapi/servers             {"servers": ["files", …]}
    GET  /mcpapi/server/{id}/tools   {"server": id, "tools": [{"type": "function", "function": {"name", "description", …}}]}
    GET  /mcpapi/tools               {"tools": […]}, of all servers, named "id.tool"
    POST /mcpapi/tool/{id}.{tool}    body: the arguments; {"content": text or JSON, or a list of parts}; or {"detail": why}

The protocol has no sessions. A client that sends its episode's id (`Tandem-Episode-Id`) has that episode's tool processes;
clients without one share a set for as long as one of them asks within the lease.
"""

import asyncio
import json
from typing import Any
from urllib.parse import unquote

from mcp_types import INVALID_PARAMS

from sampler.mcp_docker.links.errors import GatewayBusy, Refused, ServerGone, StartFailed
from sampler.mcp_docker.links.messages import Message
from sampler.mcp_docker.links.server_link import BAD_GATEWAY, ServerLink
from sampler.mcp_docker.sessions.gateway_session import GATEWAY_TIMEOUT, GatewaySession
from sampler.mcp_docker.sessions.sessions import Sessions
from shared.http.asgi import HttpRefusal, HttpRequest, retry_after
from shared.mcp.revision import EPISODE_HEADER


class OlderApi:
    """Lists and calls; every call is one request to one tool server."""

    def __init__(self, sessions: Sessions, max_body_bytes: int) -> None:
        self._sessions = sessions
        self._max_body_bytes = max_body_bytes

    async def serve(self, request: HttpRequest, parts: list[str]) -> None:
        """`parts`: of the path after /mcpapi. Raises HttpRefusal."""
        body = await request.body(self._max_body_bytes)
        session = await self._session_for(request)
        with session.connected():
            try:
                async with asyncio.timeout(self._sessions.rules.call_s):
                    content = await self._answer(request.method, parts, session, body)
                await request.answer_json(200, content)
            except Refused as exc:  # as AgentDock's node: the fields of an error, with HTTP status 200
                await request.answer_json(200, {"status_code": 500, "detail": str(exc), "headers": None})
            except TimeoutError as exc:
                why = f"the tool server did not answer within {self._sessions.rules.call_s:g} s"
                raise HttpRefusal(GATEWAY_TIMEOUT, {"detail": why}) from exc
            except ServerGone as exc:
                raise HttpRefusal(BAD_GATEWAY, {"detail": f"Connection closed: {exc}"}) from exc

    async def _session_for(self, request: HttpRequest) -> GatewaySession:
        episode = request.headers.get(EPISODE_HEADER.lower(), "")
        try:
            return await self._sessions.of_episode(f"mcpapi {episode}")
        except GatewayBusy as exc:
            raise HttpRefusal(503, {"detail": f"busy: {exc}"}, retry_after(exc.retry_after_s)) from exc
        except StartFailed as exc:
            raise HttpRefusal(BAD_GATEWAY, {"detail": str(exc)}) from exc
        except ServerGone as exc:
            if episode:
                raise HttpRefusal(BAD_GATEWAY, {"detail": f"Connection closed: {exc}"}) from exc
            return await self._session_for(request)  # shared by all that name none: its state is no episode's

    async def _answer(self, method: str, parts: list[str], session: GatewaySession, body: bytes) -> Message:
        links = session.tool_set.links
        match method, parts:
            case "GET", ["servers"]:
                return {"servers": list(links)}
            case "GET", ["tools"]:
                listed = [(link, await link.all_pages("tools/list", "tools")) for link in links.values()]
                return {"tools": [_schema(tool, f"{link.name}.") for link, tools in listed for tool in tools]}
            case "GET", ["server", name, "tools"] if unquote(name) in links:
                tools = await links[unquote(name)].all_pages("tools/list", "tools")
                return {"server": unquote(name), "tools": [_schema(tool) for tool in tools]}
            case "GET", ["server", name, "tools"]:
                raise HttpRefusal(404, {"detail": f"Server {unquote(name)[:100]} not found"})
            case "POST", ["tool", name]:
                return await self._call(session, unquote(name), body)
        raise HttpRefusal(404, {"detail": "expected servers, tools, server/NAME/tools or tool/NAME.TOOL"})

    async def _call(self, session: GatewaySession, name: str, body: bytes) -> Message:
        try:
            arguments = json.loads(body or b"{}")
        except (ValueError, RecursionError) as exc:
            raise HttpRefusal(400, {"detail": f"the body is not JSON: {exc}"}) from exc
        if not isinstance(arguments, dict):
            raise HttpRefusal(400, {"detail": "the body is no object of arguments"})
        link, tool = _target(session, name)
        result = await link.ask("tools/call", {"name": tool, "arguments": arguments})
        failed = {"status": "error"} if result.get("isError") is True else {}
        return {"content": _content(result), **failed}


def _target(session: GatewaySession, name: str) -> tuple[ServerLink, str]:
    """Server and tool may both contain dots."""
    for end in (index for index, char in enumerate(name) if char == "."):
        if name[:end] in session.tool_set.links:
            return session.tool_set.links[name[:end]], name[end + 1 :]
    raise Refused(INVALID_PARAMS, f"Session for server of {name[:100]!r} not found; expected SERVER.TOOL")


def _schema(tool: Message, prefix: str = "") -> Message:
    parameters = tool.get("inputSchema")
    function = {
        "name": f"{prefix}{tool.get('name')}",
        "description": tool.get("description", ""),
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


def _content(result: Message) -> Any:
    """A text alone is the content itself; else a list of parts."""
    blocks = result.get("content")
    parts = [_part(block) for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return parts


def _part(block: Message) -> Message:
    if block.get("type") == "text":
        return {"type": "text", "text": block.get("text", "")}
    if block.get("type") == "image":
        url = f"data:{block.get('mimeType')};base64,{block.get('data')}"
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "text", "text": json.dumps(block, ensure_ascii=False)}
